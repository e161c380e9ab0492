"""Each static finding: its smallest folder raises it, and nothing else; the healthy twin does not."""

import filecmp
import re
from pathlib import Path

import make_cases
import pytest
from make_cases import CASES, FOLDER

import draftprobe
from draftprobe.diagnose.checks.catalogue import STATIC
from draftprobe.diagnose.checks.inspection import Asked, inspect
from draftprobe.drafter.wiring import parse_taps
from draftprobe.report.findings import SECTIONS, ids, read_page

SOURCE = Path(draftprobe.__file__).parent

# What no files alone can raise: it takes states, or what a server shows.
BY_DIAGNOSE = {"W101", "W102", "W103", "W104", "W105", "E101", "E102", "Q101"}
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


# What else a single change cannot but raise, with the reason.
ALONG = {
    "W111": {"W112"},
    "W401": set(),
    "S101": {"W111"},
    "S102": {"W306"},
}


@pytest.mark.parametrize("identifier", sorted(CASES))
def test_the_smallest_folder_raises_its_finding(identifier):
    _, options = CASES[identifier]
    ids = found(FOLDER / identifier, options)
    print(identifier, ids)
    assert identifier in ids
