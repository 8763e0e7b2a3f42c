"""Which tensors a repacked checkpoint has, of which stored ones each is made, and in which files: no data is read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dsv41c.kernels.encodings import ENCODINGS
from dsv41c.runtime.weights.encoding import PACKED_FP4
from dsv41c.runtime.weights.headers import Checkpoint, TensorHeader
from dsv41c.runtime.weights.match import Binding, Matching, Stored
from dsv41c.runtime.weights.names import scale_names
from dsv41c.runtime.weights.variants import GATE_UP, NIBBLES

# How the experts of a layer are written: one by one, a tensor for each matrix, and gate and up together besides.
ExpertLayout = Literal["separate", "stacked", "gate_up", "interleaved"]
TableLayout = Literal["separate", "rows"]
SHARD_BYTES = 4 << 30
_PAGE = 4096
_ROWS = ENCODINGS["fp8_row32"]
_BLOCK = 32


class Output(NamedTuple):
    """A tensor to be written: its runs in order, each one tensor's bytes, or the rows of two tensors in turn.

    With `swapped`, the two nibbles of every byte change places.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    runs: tuple[tuple[TensorHeader, ...], ...]
    swapped: bool = False

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(header.size for run in self.runs for header in run)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file to be written: its header as bytes, and its tensors in the order of their data."""

    name: str
    header: bytes
    tensors: tuple[Output, ...]


def declarations(experts: ExpertLayout) -> dict[str, str]:
    """What a repacked checkpoint declares."""
    order = {"gate_up": "gate_up", "interleaved": "gate_up_interleaved"}.get(experts)
    return {NIBBLES: "low_first", **({GATE_UP: order} if order else {})}


def outputs(
    matching: Matching, checkpoint: Checkpoint, experts: ExpertLayout, tables: TableLayout
) -> list[tuple[int, Output]]:
    """Every tensor of the result with the stage that reads it, in the plan's order; what no stage reads comes last."""
    swap = checkpoint.declared.get(NIBBLES) == "high_first"
    layers: dict[tuple[int, int], dict[str, Binding]] = {}
    found: list[tuple[int, Output]] = []
    for binding in matching.bindings:
        entry = binding.entry
        if "{expert}" in entry.name and experts != "separate":
            layers.setdefault((entry.stage, entry.layer or 0), {})[entry.role] = binding
        elif entry.role == "engram_table" and tables == "rows" and binding.stored[0].encoding == "fp8_row32":
            found.append((entry.stage, _table(binding.stored[0])))
        else:
            found += [(entry.stage, output) for stored in binding.stored for output in _single(stored, swap)]
    for (stage, _), roles in layers.items():
        found += [(stage, output) for output in _experts(roles, experts, swap)]
    found = list({output.name: (stage, output) for stage, output in sorted(found, key=lambda pair: pair[0])}.values())
    read = {header.name for _, output in found for run in output.runs for header in run}
    last = max((stage for stage, _ in found), default=0) + 1
    rest = [header for name, header in checkpoint.tensors.items() if name not in read]
    return found + [(last, _same(header, swap and _is_fp4(header, checkpoint))) for header in rest]


def _headers(stored: Stored) -> tuple[TensorHeader, ...]:
    return (stored.tensor,) if stored.scale is None else (stored.tensor, stored.scale)


def _single(stored: Stored, swap: bool) -> Iterator[Output]:
    """A tensor by itself, and its scale as the release spells it."""
    yield _same(stored.tensor, swap and stored.encoding == "fp4_32")
    if stored.scale is not None:
        yield _same(stored.scale, False)._replace(name=scale_names(stored.tensor.name)[0])


def _same(header: TensorHeader, swapped: bool) -> Output:
    return Output(header.name, header.dtype, header.shape, ((header,),), swapped)


def _is_fp4(header: TensorHeader, checkpoint: Checkpoint) -> bool:
    """Whether a tensor holds packed FP4 codes: its dtype, and a scale beside it. Of tensors that no plan reads too."""
    return header.dtype in PACKED_FP4 and any(
        name in checkpoint.tensors for name in scale_names(header.name) if name != header.name
    )


def _table(stored: Stored) -> Output:
    """A table with the scales of each row behind its codes."""
    assert stored.scale is not None
    rows, width = stored.tensor.shape
    name = stored.tensor.name.removesuffix(".weight") + ".rows"
    return Output(name, "U8", (rows, _ROWS.bytes((1, width))), ((stored.tensor, stored.scale),))


def _experts(roles: Mapping[str, Binding], layout: ExpertLayout, swap: bool) -> Iterator[Output]:
    """The tensors of a layer's experts. Where not all are stored alike, they stay one by one."""
    pair = [roles[role] for role in ("experts_w1", "experts_w3") if role in roles]
    if layout in ("gate_up", "interleaved") and len(pair) == 2 and _can_pair(pair, layout):
        yield from _merged(pair, "gate_up_proj", layout, swap)
        roles = {role: binding for role, binding in roles.items() if binding not in pair}
    for role, binding in roles.items():
        if _alike([binding]):
            yield from _merged([binding], role.removeprefix("experts_"), layout, swap)
        else:
            for stored in binding.stored:
                yield from _single(stored, swap)


def _alike(bindings: Sequence[Binding]) -> bool:
    kinds = {
        (stored.encoding, *((header.dtype, header.shape) for header in _headers(stored)))
        for binding in bindings
        for stored in binding.stored
    }
    return len(kinds) == 1


def _can_pair(pair: Sequence[Binding], layout: ExpertLayout) -> bool:
    """Whether gate and up may share a tensor: the scale of an FP8 block belongs to one of them alone."""
    if not _alike(pair):
        return False
    stored = pair[0].stored[0]
    if not stored.encoding.startswith("fp8_"):
        return True
    return stored.tensor.shape[0] % _BLOCK == 0 and (layout == "gate_up" or stored.encoding != "fp8_32x32")


def _merged(bindings: Sequence[Binding], matrix: str, layout: ExpertLayout, swap: bool) -> Iterator[Output]:
    """All experts of a matrix, or of two, in one tensor: the codes, then the scales if there are any."""
    name = bindings[0].entry.name.partition("{expert}")[0] + matrix
    first = bindings[0].stored[0]
    for place, header in enumerate(_headers(first)):
        experts = zip(*([_headers(stored)[place] for stored in binding.stored] for binding in bindings), strict=True)
        runs = [run for each in experts for run in ([each] if layout == "interleaved" else [(part,) for part in each])]
        rows, columns = header.shape
        shape = (len(bindings[0].stored), rows * len(bindings), columns)
        is_codes = place == 0 and first.encoding == "fp4_32"
        yield Output(name + (".weight", ".scale")[place], header.dtype, shape, tuple(runs), swap and is_codes)


def files(found: Sequence[tuple[int, Output]], declared: Mapping[str, str], limit: int) -> list[OutputFile]:
    """The files of a result: each has tensors of one stage, and more than `limit` bytes only of a single tensor."""
    groups: list[list[Output]] = []
    before, size = -1, 0
    for stage, output in found:
        if stage != before or size + output.size > limit:
            groups.append([])
            size = 0
        groups[-1].append(output)
        before, size = stage, size + output.size
    return [
        _file(f"model-{number:05d}-of-{len(groups):05d}.safetensors", group, declared)
        for number, group in enumerate(groups, start=1)
    ]


def _file(name: str, tensors: Sequence[Output], declared: Mapping[str, str]) -> OutputFile:
    """The data begins on a page. Sizes that are multiples of much come first, so every tensor is as aligned as its own
    size allows."""
    ordered = sorted(tensors, key=lambda output: -math.gcd(output.size, _PAGE))
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **declared}}
    end = 0
    for output in ordered:
        entries[output.name] = {
            "dtype": output.dtype,
            "shape": list(output.shape),
            "data_offsets": [end, end + output.size],
        }
        end += output.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _PAGE)
    return OutputFile(name, len(text).to_bytes(8, "little") + text, tuple(ordered))


def index_text(listed: Sequence[OutputFile], declared: Mapping[str, str]) -> str:
    """The index file: every tensor's file, sorted by name, and the declarations."""
    weight_map = {output.name: file.name for file in listed for output in file.tensors}
    size = sum(output.size for file in listed for output in file.tensors)
    document = {"metadata": {"total_size": size, **declared}, "weight_map": weight_map}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
