"""States: token sequences with the target's hidden states by boundary, in one safetensors file.

Reads sequence by sequence and boundary by boundary, never the whole file; knows no model.
A sequence of n tokens has n - 1 rows: row t is the state at token t, and the last token's state
would only predict a token that the file does not hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftprobe.drafter.checkpoint import TensorInfo, read_header, read_tensor
from draftprobe.drafter.wiring import Tap, tap_name, taps_name
from draftprobe.errors import InputError

if TYPE_CHECKING:
    import torch

FORMAT = "draftprobe-states"
VERSION = 1
SOURCES = ("greedy", "sampled", "dataset")
_METADATA_KEY = "draftprobe"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where states come from; the file's JSON header.

    Attributes:
        source: ``greedy`` (the target's own argmax continuation), ``sampled`` or ``dataset``.
        model: name or path of the target.
        model_type: the text config's ``model_type``.
        config_digest: SHA-256 of the target's text config.
        layers: L; hidden_size: H; vocab_size: V.
        dtype: of the stored states; compute: dtype the target ran in; batch: sequences per pass.
        template: SHA-256 of the chat template, or None where none was applied.
        kinds: one label per sequence (empty string where none was given).
        versions: packages that took part.
    """

    source: str
    model: str
    model_type: str
    config_digest: str
    layers: int
    hidden_size: int
    vocab_size: int
    dtype: str
    compute: str
    batch: int
    template: str | None
    kinds: tuple[str, ...]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One sequence.

    Attributes:
        tokens: int64 [n].
        mask: bool [n]; True on tokens whose prediction counts.
        h: boundary -> [n - 1, H].
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    h: dict[Tap, torch.Tensor]

    def taps(self, taps: Sequence[Tap]) -> torch.Tensor:
        """The concatenation that feeds fc: float32 [n - 1, len(taps) * H]."""
        import torch

        return torch.cat([self.h[tap].float() for tap in taps], dim=-1)


@dataclass(frozen=True)
class States:
    """An open states file: small tensors in memory, hidden states read by slice."""

    path: Path
    provenance: Provenance
    boundaries: tuple[Tap, ...]
    lengths: tuple[int, ...]
    tokens: torch.Tensor
    mask: torch.Tensor
    tensors: dict[str, TensorInfo]

    def __len__(self) -> int:
        return len(self.lengths)

    def require(self, taps: Iterable[Tap]) -> None:
        """Raise InputError unless every tap is recorded here."""
        missing: list[Tap] = [tap for tap in taps if tap not in self.boundaries]
        if missing:
            raise InputError(
                f"{self.path}: expected states of {taps_name(missing)}, found only "
                f"{taps_name(self.boundaries)}; capture again with these boundaries"
            )

    def sequence(self, index: int, taps: Iterable[Tap]) -> Recorded:
        """Sequence ``index`` with the given boundaries.

        Raises:
            InputError: a boundary is not recorded, or a state is NaN or infinite.
        """
        import torch

        taps = tuple(dict.fromkeys(taps))
        self.require(taps)
        start = sum(self.lengths[:index])
        n = self.lengths[index]
        row = start - index
        h: dict[Tap, torch.Tensor] = {}
        for tap in taps:
            name = tap_name(tap)
            h[tap] = read_tensor(self.tensors[name], rows=(row, row + n - 1))
            if not torch.isfinite(h[tap]).all():
                raise InputError(
                    f"{self.path}: {name} of sequence {index} holds NaN or infinite values; "
                    "capture again, in bfloat16 or float32 if the states overflowed"
                )
        return Recorded(self.tokens[start : start + n], self.mask[start : start + n], h)

    def sequences(self, taps: Iterable[Tap]) -> Iterator[Recorded]:
        """Every sequence in order; see :meth:`sequence`."""
        taps = tuple(taps)
        return (self.sequence(index, taps) for index in range(len(self)))


def open_states(path: str | Path) -> States:
    """Open a states file and check that its parts fit together.

    Raises:
        InputError: no such file, not a states file, truncated, or inconsistent.
    """
    import torch

    path = Path(path)
    tensors, metadata = read_header(path)
    provenance = _parse_provenance(path, metadata.get(_METADATA_KEY))
    for name in ("lengths", "tokens", "loss_mask"):
        if name not in tensors:
            raise InputError(f"{path}: expected a tensor {name!r}, found {sorted(tensors)[:8]}")
        if tensors[name].dtype not in ("I32", "I64", "U8", "BOOL"):
            raise InputError(f"{path}: {name} should hold integers, found {tensors[name].dtype}")
    lengths = tuple(int(n) for n in read_tensor(tensors["lengths"]).reshape(-1).tolist())
    tokens = read_tensor(tensors["tokens"]).long()
    mask = read_tensor(tensors["loss_mask"]).bool()
    boundaries = _boundaries(tensors)
    total, rows = sum(lengths), sum(lengths) - len(lengths)
    if not lengths or min(lengths) < 2 or tokens.shape != (total,) or mask.shape != (total,):
        raise InputError(
            f"{path}: lengths, tokens and loss_mask disagree: lengths sum to {total} over "
            f"{len(lengths)} sequences (each needs 2 tokens), tokens {tuple(tokens.shape)}, "
            f"loss_mask {tuple(mask.shape)}"
        )
    for tap in boundaries:
        info = tensors[tap_name(tap)]
        if info.shape != (rows, provenance.hidden_size):
            raise InputError(
                f"{path}: {tap_name(tap)} should have shape ({rows}, {provenance.hidden_size}), "
                f"found {info.shape}"
            )
        if info.dtype not in ("F32", "F16", "BF16"):
            raise InputError(
                f"{path}: {tap_name(tap)} should be a float tensor, found {info.dtype}"
            )
    if torch.any(tokens < 0) or torch.any(tokens >= provenance.vocab_size):
        raise InputError(
            f"{path}: token ids should lie in 0..{provenance.vocab_size - 1}, found "
            f"{int(tokens.min())}..{int(tokens.max())}"
        )
    if len(provenance.kinds) != len(lengths):
        raise InputError(
            f"{path}: header names {len(provenance.kinds)} kinds for {len(lengths)} sequences"
        )
    return States(path, provenance, boundaries, lengths, tokens, mask, tensors)


def _boundaries(tensors: dict[str, TensorInfo]) -> tuple[Tap, ...]:
    numbered = [re.fullmatch(r"h\[(0|[1-9][0-9]{0,5})\]", name) for name in tensors]
    taps: list[Tap] = [*sorted(int(match[1]) for match in numbered if match)]
    return (*taps, "N") if "h[N]" in tensors else tuple(taps)


def _parse_provenance(path: Path, text: str | None) -> Provenance:
    if text is None:
        raise InputError(
            f"{path}: not a states file: no {_METADATA_KEY!r} entry in its header; "
            "make one with `draftprobe capture`"
        )
    names = {field.name for field in fields(Provenance)}
    try:
        data = json.loads(text)
        if data.pop("format") != FORMAT or data.pop("version") != VERSION or set(data) != names:
            raise ValueError(f"expected format {FORMAT} version {VERSION} with {sorted(names)}")
        provenance = Provenance(**(data | {"kinds": tuple(data["kinds"])}))
        for name, most in (("layers", 10_000), ("hidden_size", 10**6), ("vocab_size", 10**8)):
            value = getattr(provenance, name)
            if type(value) is not int or not 0 < value <= most:
                raise ValueError(f"expected {name} in 1..{most}, found {value!r}")
        if provenance.source not in SOURCES or not isinstance(provenance.model, str):
            raise ValueError(f"expected a source of {SOURCES}, found {provenance.source!r}")
        return provenance
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: the states header cannot be read: {error}") from None


def provenance_metadata(provenance: Provenance) -> dict[str, str]:
    """The safetensors metadata that :func:`open_states` reads back."""
    data: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(provenance)}
    return {_METADATA_KEY: json.dumps(data)}


def merge_parts(parts: Sequence[Path], out: Path, provenance: Provenance) -> None:
    """Join part files (same tensors, in order, no metadata) into one states file at ``out``.

    Streams tensor by tensor, so memory stays at one part's tensor. The caller moves the file into
    place.
    """
    headers = [read_header(part)[0] for part in parts]
    names = sorted(headers[0])
    header: dict[str, Any] = {"__metadata__": provenance_metadata(provenance)}
    offset = 0
    for name in names:
        infos = [tensors[name] for tensors in headers]
        size = sum(info.size for info in infos)
        shape = [sum(info.shape[0] for info in infos), *infos[0].shape[1:]]
        header[name] = {
            "dtype": infos[0].dtype,
            "shape": shape,
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with out.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for tensors in headers:
                info = tensors[name]
                with info.file.open("rb") as source:
                    source.seek(info.start)
                    file.write(source.read(info.size))
