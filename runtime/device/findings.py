"""Findings about captured work (87x), each with the region, the op, and the place in the spec that they come from."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.device.geometry import Geometry
from dsv41c.runtime.device.protocol import Work
from dsv41c.runtime.manifest import OpEntry


def at(code: str, work: Work, op: OpEntry | None, text: str, help_text: str, *facts: tuple[str, str]) -> Diagnostic:
    """A finding about an op of captured work; without an op, about the work as a whole."""
    who = f"`{op.id}` in captured `{work.name}`" if op is not None else f"captured `{work.name}`"
    place = op.span if op is not None else work.span
    return Diagnostic(code, f"{who} {text}", span(place), facts=facts, help=help_text)


def span(place: str) -> Span | None:
    """`specs/toy.yaml:47:3` as a span; None for what is no such place."""
    file, _, rest = place.rpartition(":")
    name, _, line = file.rpartition(":")
    return Span(name, int(line), int(rest)) if name and line.isdecimal() and rest.isdecimal() else None


def host_read(work: Work, op: OpEntry | None, function: str) -> Diagnostic:
    """A value is brought to the host."""
    text = f"reads a value back to the host: `{function}`"
    return at("DSV870", work, op, text, "keep it on the device: masks and `torch.where` instead of branches")


def data_shape(work: Work, op: OpEntry | None, function: str) -> Diagnostic:
    """A shape depends on what a tensor holds."""
    text = f"makes a shape that depends on data: `{function}`"
    return at("DSV871", work, op, text, "compute every row and mask what does not count")


def outlives(work: Work, op: OpEntry | None, function: str, size: int) -> Diagnostic:
    """Memory made inside is still held outside."""
    text = f"made {size} bytes that are held after it ended and are none of its outputs: `{function}`"
    return at("DSV872", work, op, text, "return it, or drop it; caches are filled at warm-up")


def moved(work: Work, before: Mapping[str, Geometry], now: Mapping[str, Geometry]) -> list[Diagnostic]:
    """Inputs and state that are not where, or not as, they were at capture."""
    help_text = "copy new values into the tensor that was captured; release and capture again if it has to move"
    found = []
    for name, old in before.items():
        new = now.get(name)
        if new != old:
            facts = (("at capture", str(old)), ("now", str(new)))
            found.append(at("DSV873", work, None, f"reads `{name}`, which is not where it was", help_text, *facts))
    return found


def view_update(work: Work, op: OpEntry | None, function: str, name: str) -> Diagnostic:
    """State is written through a view, on a family that forbids it."""
    text = f"writes `{name}` through a view of it: `{function}`"
    return at("DSV874", work, op, text, "write with `index_put_` or `index_copy_` on the whole pool")


def view_changed(work: Work, op: OpEntry | None, function: str, name: str, old: str, new: str) -> Diagnostic:
    """A view of an input or of state is another one than at warm-up."""
    text = f"takes another view of `{name}` than at warm-up: `{function}`"
    help_text = "index with tensors, which may change, instead of slices, which may not"
    return at("DSV875", work, op, text, help_text, ("at warm-up", old), ("now", new))


def differs(work: Work, op: OpEntry | None, old: str, new: str) -> Diagnostic:
    """A replay does not do what was captured."""
    help_text = "nothing on the host may decide what a kernel does; put it into a tensor, or into the key of the graph"
    text = "does something else than when it was captured"
    return at("DSV876", work, op, text, help_text, ("at capture", old), ("now", new))


def undeclared(work: Work, op: OpEntry | None, function: str) -> Diagnostic:
    """A tensor is read that nobody declared."""
    text = f"reads a tensor that is no input, state or weight of it: `{function}`"
    return at("DSV877", work, op, text, "make it from its inputs on the device, or pass it as an input")
