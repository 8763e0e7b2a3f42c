"""From a traceback to the call of generated code that it went through. Looked up only once something has failed."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType

from dsv41c.kernels.reference.fused import call_part
from dsv41c.runtime.calls import RegionCall
from dsv41c.runtime.manifest import OpEntry
from dsv41c.runtime.plan import MODULE


@dataclass(frozen=True, slots=True)
class Located:
    """A call of a region, None where no generated code took part, and the op inside a fused one, where it is known.

    `names`: what the names of the region's function stood for. Holds on to tensors, so it is not kept.
    """

    call: RegionCall | None = None
    op: OpEntry | None = None
    names: Mapping[str, object] = field(default_factory=dict)


def locate(traceback: TracebackType | None, calls: Sequence[RegionCall]) -> Located:
    """Where a traceback went through the function of a region that makes these calls, in order."""
    call, names, part = None, {}, None
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals.get("__name__") == MODULE:
            call, names = _call_at(frame, traceback.tb_lineno, calls), dict(frame.f_locals)
        elif frame.f_code is call_part.__code__:
            part = frame.f_locals.get("op")
        traceback = traceback.tb_next
    op = None
    if call is not None:
        op = call.ops[0] if not call.fused else next((each for each in call.ops if each.kind == part), None)
    return Located(call, op, names)


def _call_at(frame: FrameType, line: int, calls: Sequence[RegionCall]) -> RegionCall | None:
    """The call that a line of a function belongs to; None where the code is not what the manifest says."""
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    first = frame.f_code.co_firstlineno
    function = next((node for node in ast.parse(source).body if node.lineno == first), None)
    if not isinstance(function, ast.FunctionDef):
        return None
    statements = [node for node in function.body if isinstance(node, ast.Assign)]
    if len(statements) != len(calls):
        return None
    pairs = zip(statements, calls, strict=True)
    return next((call for node, call in pairs if node.lineno <= line <= (node.end_lineno or node.lineno)), None)
