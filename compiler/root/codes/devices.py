"""Codes 87x: what captured work may not do. Strict mode shows them on the CPU; each has a trigger in the tests."""

from __future__ import annotations

from dsv41c.codes.code import Code


def _code(code: str, name: str, summary: str, explanation: str) -> Code:
    return Code(code, name, "error", summary, explanation.strip() + "\n")


CODES: tuple[Code, ...] = (
    _code(
        "DSV870",
        "host-read-in-graph",
        "captured work reads a value back to the host",
        """
A graph is a list of launches that the device runs alone. `item`, `tolist`, `.cpu()`, `bool(tensor)` or an `if` on a
tensor ask the host, which is not there at a replay: the device refuses the capture, or the answer of the first run
stays for ever.

**Way out**: keep the value on the device, with masks and `torch.where` instead of branches.
""",
    ),
    _code(
        "DSV871",
        "data-dependent-shape",
        "captured work makes a shape that depends on data",
        """
Shapes are fixed at capture. `nonzero`, `unique`, or indexing with a mask give as many rows as the data has, which a
replay cannot follow (and to size the result, the host has to be asked).

**Way out**: compute all rows and mask what does not count, as `experts_static` does.
""",
    ),
    _code(
        "DSV872",
        "allocation-outlives-graph",
        "captured work makes a tensor that is held after it ended",
        """
Memory that is made inside a graph belongs to the graph's pool and is used again, by it and by others. A tensor kept
outside, other than the declared outputs, shows whatever was written there last.

**Way out**: return it as an output, or drop it. What is made once and kept (a lookup table) is made at warm-up.
""",
    ),
    _code(
        "DSV873",
        "graph-input-moved",
        "an input or state of captured work is not where it was at capture",
        """
A graph holds addresses, shapes, strides and offsets. New values have to be copied into the tensors that were captured.
Where an input or a pool is another tensor by then, a replay goes on with the old one, so with another step's tokens or
another session's state, and nothing fails.

**Way out**: copy into the static buffer. Where a pool has to be replaced, release what was captured first.
""",
    ),
    _code(
        "DSV874",
        "update-through-view",
        "captured work writes state through a view of it",
        """
HPU graphs follow state by whole buffers. A write through a view (`pool[slot].copy_(rows)`) may go to a copy, or be
reordered against a read of the pool.

**Way out**: write with indices on the pool itself: `pool[slots] = rows`, `index_put_`, `index_copy_`.
""",
    ),
    _code(
        "DSV875",
        "view-changed",
        "captured work takes another view of an input or of state than at warm-up",
        """
HPU graphs hold the shape, strides and offset of every view that they take. A slice whose bounds come from the host is
another view at another step; the graph goes on with the first one.

**Way out**: gather with index tensors, which may hold new numbers at each replay.
""",
    ),
    _code(
        "DSV876",
        "replay-differs",
        "captured work does something else than when it was captured",
        """
A replay repeats what was recorded: the same operations with the same numbers from the host, on the same shapes. Here
the code did something else the second time, because something on the host decides what it does: a counter, a
cache, a length. A graph would have ignored that.

**Way out**: what varies goes into a tensor, or into the key that a graph is kept under.
""",
    ),
    _code(
        "DSV877",
        "undeclared-input",
        "captured work reads a tensor that is no input, state or weight of it",
        """
Inputs, state and weights of a region are declared, and their places are watched. A tensor that comes from elsewhere (a
global, a `torch.tensor(...)` made on the host at each call) is not refreshed for a replay, and a copy from the host
cannot be captured.

**Way out**: make it on the device from the inputs (`torch.arange(..., device=...)`), or make it an input.
""",
    ),
)
