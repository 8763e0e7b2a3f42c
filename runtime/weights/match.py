"""A plan's weights against a checkpoint's headers: what binds to what, and everything that does not fit.

No torch and no data: this is both the check before allocation and `validate --checkpoint`. Each role ends up with
exactly one tensor of the right shape and encoding, or there is a finding; one cause gives one finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dsv41c.diagnostics import Diagnostic, has_errors
from dsv41c.runtime.manifest import Manifest, WeightEntry
from dsv41c.runtime.weights.encoding import (
    SCALE_DTYPES,
    accepted,
    encoding_of,
    fitting,
    is_plain,
    scale_shape,
    weight_shape,
)
from dsv41c.runtime.weights.findings import Faults, expert_counts, missing, unexpected
from dsv41c.runtime.weights.gguf.claims import contradictions
from dsv41c.runtime.weights.gguf.tensor import GgufHeader, Mxfp4Codes, Mxfp4Scales
from dsv41c.runtime.weights.headers import Checkpoint, TensorHeader
from dsv41c.runtime.weights.names import SCALE_SUFFIXES, scale_names, unused_family
from dsv41c.runtime.weights.variants import NIBBLES

_HELP_NIBBLES = "write it anew for these kernels with `dsv41c repack`"


class Stored(NamedTuple):
    """A tensor bound to a role, its scale if it is quantised, and the encoding they are in."""

    tensor: TensorHeader
    scale: TensorHeader | None
    encoding: str


@dataclass(frozen=True, slots=True)
class Binding:
    """A weight of the plan and what it is read from: one tensor, or one for each expert in order."""

    entry: WeightEntry
    stored: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    """The outcome. `bindings` are whole only if there are no errors; `unused` counts tensors by unread family."""

    bindings: tuple[Binding, ...]
    diagnostics: tuple[Diagnostic, ...]
    unused: Mapping[str, int]
    unused_bytes: int

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return has_errors(self.diagnostics)

    @property
    def unused_count(self) -> int:
        """How many tensors belong to families that the text backbone does not read."""
        return sum(self.unused.values())


def match(manifest: Manifest, checkpoint: Checkpoint) -> Matching:
    """Match every weight of a plan; the checkpoint's own findings come first. Raises nothing."""
    counts = expert_counts(manifest.weights, checkpoint)
    faults = Faults()
    used: set[str] = set()
    absent: list[tuple[WeightEntry, str]] = []
    bindings = []
    for entry in manifest.weights:
        stored = []
        for expert in range(entry.count):
            name = entry.name.replace("{expert}", str(expert))
            used.add(name)
            used.update(scale_names(name))
            tensor = checkpoint.tensors.get(name)
            if tensor is not None:
                bound = _bind(entry, tensor, checkpoint, faults)
                if bound is not None:
                    stored.append(bound)
            elif name not in checkpoint.damaged and not counts.beyond(entry, expert):
                absent.append((entry, name))
        bindings.append(Binding(entry, tuple(stored)))
    extra, unused, unused_bytes = _leftovers(checkpoint, used)
    findings = [*checkpoint.diagnostics, *counts.diagnostics]
    if checkpoint.complete:  # a broken file may hold what is missing
        findings += missing(absent, manifest.weights, checkpoint)
    findings += checkpoint.located(faults.diagnostics())
    findings += contradictions(manifest, checkpoint)
    findings += unexpected([name for name in extra if name not in counts.surplus], manifest.weights)
    return Matching(tuple(bindings), tuple(findings), unused, unused_bytes)


def _leftovers(checkpoint: Checkpoint, used: set[str]) -> tuple[list[str], dict[str, int], int]:
    """Tensors nothing reads: the unexpected ones, and the known families counted with their bytes."""
    extra, unused, size = [], dict[str, int](), 0
    for name, tensor in checkpoint.tensors.items():
        if name in used:
            continue
        family = unused_family(name)
        if family is None:
            extra.append(name)
        else:
            unused[family] = unused.get(family, 0) + 1
            size += tensor.size
    return extra, unused, size


def _bind(entry: WeightEntry, tensor: TensorHeader, checkpoint: Checkpoint, faults: Faults) -> Stored | None:
    """A tensor with its scale, or None when something about them was reported."""
    if isinstance(tensor, GgufHeader):
        return _in_blocks(entry, tensor, faults)
    encoding = encoding_of(tensor.dtype, entry)
    if encoding not in accepted(entry):
        text = f"is stored as {tensor.dtype}, and its role takes {' or '.join(accepted(entry))}"
        faults.add("DSV723", entry, tensor, "tensor", text)
        return None
    expected = weight_shape(encoding, tensor.dtype, entry.shape)
    if expected is None:
        text = f"has rows of {entry.shape[-1]} elements, and {encoding} packs two a byte"
        faults.add("DSV722", entry, tensor, "tensor", text)
        return None
    if tensor.shape != expected:
        text = f"has shape {list(tensor.shape)} ({tensor.dtype}), expected {list(expected)}"
        faults.add("DSV722", entry, tensor, "tensor", text)
        return None
    names = scale_names(tensor.name)
    scales = [checkpoint.tensors[name] for name in names if name in checkpoint.tensors]
    if is_plain(encoding):
        return _plain(entry, tensor, scales, encoding, faults)
    if not scales and any(name in checkpoint.damaged for name in names):
        return None
    return _scaled(entry, tensor, scales, encoding, checkpoint, faults)


def _in_blocks(entry: WeightEntry, tensor: GgufHeader, faults: Faults) -> Stored | None:
    """A tensor that GGUF stores in blocks: MXFP4 as `fp4_32` where the role takes that, all others as floats."""
    if tensor.shape != tuple(entry.shape):
        text = f"has shape {list(tensor.shape)} ({tensor.dtype}), expected {list(entry.shape)}"
        faults.add("DSV722", entry, tensor, "tensor", text)
        return None
    if tensor.dtype != "MXFP4" or "fp4_32" not in accepted(entry):
        return Stored(tensor, None, "f32")
    *rows, columns = tensor.shape
    scales = tensor._replace(stored=f"{tensor.stored}[scales]", shape=(*rows, columns // 32))
    return Stored(Mxfp4Codes(*tensor), Mxfp4Scales(*scales), "fp4_32")


def _plain(
    entry: WeightEntry, tensor: TensorHeader, scales: list[TensorHeader], encoding: str, faults: Faults
) -> Stored | None:
    if scales:
        suffix = "." + scales[0].name.rsplit(".", 1)[1]
        text = f"is {tensor.dtype} and has a scale beside it ({suffix}), which would not be applied"
        faults.add("DSV727", entry, tensor, "tensor", text)
        return None
    return Stored(tensor, None, encoding)


def _scaled(
    entry: WeightEntry,
    tensor: TensorHeader,
    scales: list[TensorHeader],
    encoding: str,
    checkpoint: Checkpoint,
    faults: Faults,
) -> Stored | None:
    kind = f"{encoding.split('_')[0]} tensor"
    if not scales:
        faults.add("DSV724", entry, tensor, kind, f"has no scale (looked for {', '.join(SCALE_SUFFIXES)})")
        return None
    if len(scales) > 1:
        spelled = " and ".join("." + scale.name.rsplit(".", 1)[1] for scale in scales)
        faults.add("DSV726", entry, tensor, kind, f"has two scales ({spelled})")
        return None
    (scale,) = scales
    if scale.dtype not in SCALE_DTYPES:
        text = f"is stored as {scale.dtype}, and {encoding} takes {' or '.join(SCALE_DTYPES)}"
        faults.add("DSV723", entry, scale, "scale", text)
        return None
    expected = scale_shape(encoding, entry.shape)
    if scale.shape != expected:
        fits = fitting(scale.shape, encoding, entry.shape)
        hint = f" (it is that of {' or '.join(fits)})" if fits else ""
        text = f"has shape {list(scale.shape)}, expected {list(expected)} for {encoding} of {entry.shape}{hint}"
        faults.add("DSV725", entry, scale, "scale", text)
        return None
    if tensor.pitch and encoding == "fp8_32x32":
        text = "has rows of another matrix between its own, and blocks of 32 x 32 share a scale"
        faults.add("DSV723", entry, tensor, kind, text)
        return None
    if encoding == "fp4_32" and checkpoint.declared.get(NIBBLES, "low_first") != "low_first":
        text = f"has the high nibble first, as `{NIBBLES}` declares, and kernels read the low one first"
        faults.add("DSV723", entry, tensor, kind, text, help=_HELP_NIBBLES)
        return None
    return Stored(tensor, scale, encoding)
