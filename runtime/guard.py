"""Kernels that keep the ledger: what they are about to read is looked at first, what they wrote is tagged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dsv41c.kernels.catalog import OPS
from dsv41c.kernels.step import Step
from dsv41c.runtime.ledger import Ledger
from dsv41c.runtime.manifest import OpEntry
from dsv41c.runtime.state import EMPTY, row_axis
from dsv41c.runtime.touches import READS, WRITES

if TYPE_CHECKING:
    from dsv41c.runtime.stages.crossing import Rows

Kernel = Callable[..., Any]


class Guard:
    """Guards the kernels of one step. `rows` says whose the rows of its batch are.

    For one read, a foreign row is zeros, or a selected group is none. Its pool stays as it is, but for what the op
    writes there.
    """

    def __init__(self, ledger: Ledger, rows: Rows) -> None:
        self._ledger = ledger
        self._owners = ledger.owners(rows)

    def __call__(self, op: OpEntry, kernel: Kernel) -> Kernel:
        """The kernel of an op, guarded where it touches session state."""
        if op.kind not in READS and op.kind not in WRITES:
            return kernel
        required = [port.name for port in OPS[op.kind].reads if not port.optional]

        def guarded(step: Step, *args: Any, **named: Any) -> Any:
            given = {**dict(zip(required, args, strict=False)), **named}
            count = args[0].shape[1]
            stand_ins = _stand_ins(self._ledger.look(op, step, count, self._owners, given), step, given)
            reads = [stand_ins.get(name, given[name]) for name in required]
            result = kernel(step, *reads, *args[len(required) :], **{**named, **_those(stand_ins, named)})
            written = {port: tensor for port, tensor in stand_ins.items() if port in op.writes}
            for port, tensor in written.items():
                given[port][step.slots] = tensor[step.slots]
            self._ledger.wrote(op, step, count, self._owners, given)
            return _replaced(result, {id(tensor): given[port] for port, tensor in written.items()})

        return guarded


def _stand_ins(found: Mapping[str, tuple[Tensor, Tensor]], step: Step, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """By port, what an op is given in place of tensors with foreign rows."""
    others = {}
    for port, (rows, bad) in found.items():
        if port == "compress_kv":  # read by selection only
            others["topk"] = given["topk"].masked_fill(bad.view_as(given["topk"]), -1)
            continue
        pool = given[port].clone()
        slots = step.slots[:, None].expand_as(bad)[bad]
        by_row = pool if row_axis(port) == 1 else pool.transpose(1, row_axis(port))
        by_row[slots, rows[bad]] = EMPTY.get(port, 0)
        others[port] = pool
    return others


def _those(stand_ins: Mapping[str, Tensor], named: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in stand_ins.items() if name in named}


def _replaced(result: Any, others: Mapping[int, Tensor]) -> Any:
    """What a kernel returned, with pools in place of their stand-ins."""
    if not isinstance(result, tuple):
        return others.get(id(result), result)
    return tuple(others.get(id(part), part) for part in result)
