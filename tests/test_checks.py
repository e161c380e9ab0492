"""Each static finding: its smallest folder raises it and no other; the healthy twin raises none."""

import filecmp
import re
from pathlib import Path

import make_cases
import pytest
from make_cases import CASES, FOLDER, TWIN_OPTIONS, TWINS

import draftprobe
from draftprobe.diagnose.checks.catalogue import STATIC
from draftprobe.diagnose.checks.inspection import Asked, inspect
from draftprobe.diagnose.compare.findings import COMPARED
from draftprobe.drafter.wiring import parse_taps
from draftprobe.report.findings import SECTIONS, ids, read_page

SOURCE = Path(draftprobe.__file__).parent

# What no files alone can raise: it takes states, or what a server shows. No folder, but a page.
BY_DIAGNOSE = {
    *("W101", "W102", "W103", "W104", "W105", "W115", "W116"),
    *(f"W21{n}" for n in range(1, 9)),
    *(f"W32{n}" for n in range(1, 5)),
    *(f"W41{n}" for n in range(1, 7)),
    *(f"W42{n}" for n in range(1, 5)),
    *("E101", "E102", "Q101"),
}
"""W101 to W104 stand in an inspection, too, where --wanted says what the taps should be."""


def asked(folder, options):
    values, engines = {}, []
    rest = list(options)
    while rest:
        option = rest.pop(0)
        if option == "--deep":
            values["deep"] = True
        elif option == "--engine":
            engines.append(rest.pop(0))
        elif option == "--wanted":
            values["wanted"] = parse_taps(rest.pop(0))
        elif option == "--histogram":
            values["histogram"] = folder / rest.pop(0)
        else:
            values[option.removeprefix("--")] = rest.pop(0)
    return Asked(folder, FOLDER / "target", tuple(engines), **values)


def found(folder, options):
    return {finding.id for finding in inspect(asked(folder, options)).findings}


# What a single change cannot but raise beside its own finding.
ALONG = {
    "S101": {"W111"},  # taps of another width do not share fc's columns evenly
    "W113": {"W101", "W106"},  # what is fed now is the default, not what is wanted
    "W305": {"W306"},  # t2d marks one token more than d2t names
    "W312": {"W314"},  # what no tensor fills is missing
}


def test_every_static_finding_has_a_case():
    assert set(CASES) == set(STATIC)


@pytest.mark.parametrize("identifier", sorted(CASES))
def test_the_smallest_folder_raises_its_finding_and_no_other(identifier):
    _, options = CASES[identifier]
    assert found(FOLDER / identifier, options) == {identifier} | ALONG.get(identifier, set())


@pytest.mark.parametrize("identifier", sorted(CASES))
def test_its_healthy_twin_raises_none(identifier):
    options = TWIN_OPTIONS.get(identifier, CASES[identifier][1])
    twin = FOLDER / TWINS.get(identifier, "healthy")
    assert found(twin, options) == set()


def test_the_folders_are_what_the_script_writes(tmp_path):
    make_cases.write_all(tmp_path / "cases")
    there = sorted(p.relative_to(FOLDER) for p in FOLDER.rglob("*") if p.is_file())
    made = sorted(p.relative_to(tmp_path / "cases") for p in tmp_path.rglob("*") if p.is_file())
    assert there == made
    assert len(there) > 2 * len(CASES)
    _, differing, odd = filecmp.cmpfiles(FOLDER, tmp_path / "cases", there, shallow=False)
    assert (differing, odd) == ([], [])


def in_code():
    """Every id that stands as a whole string in the package's modules."""
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    return set(re.findall(r'"([WESQDC][0-9]{3})"', text))


def test_every_id_in_the_code_is_static_or_diagnoses():
    assert set(STATIC) <= in_code() <= set(STATIC) | BY_DIAGNOSE | set(COMPARED)
    assert not set(STATIC) & BY_DIAGNOSE


def test_every_id_has_a_page_with_every_section():
    assert set(ids()) == set(STATIC) | BY_DIAGNOSE | set(COMPARED)
    for identifier in ids():
        page = read_page(identifier.lower())
        assert page.text.startswith(f"# {identifier}: {page.title}\n")
        assert tuple(page.sections) == SECTIONS
        assert all(len(body) > 10 for body in page.sections.values()), identifier
