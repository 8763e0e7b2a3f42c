"""Findings about one call of a region: its kernel raised, or what it gave has another form than the plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from dsv41c.runtime.calls import RegionCall
from dsv41c.runtime.faults.errors import code_of, is_late, said, said_in_full, way_out
from dsv41c.runtime.faults.forms import Forms, Sizes, form
from dsv41c.runtime.faults.locate import Located, locate
from dsv41c.runtime.faults.told import Facts, Found, StepError
from dsv41c.runtime.manifest import OpEntry, RegionEntry, identifier
from dsv41c.words import shortlist

_MOST = 4  # values that are named


def raised(
    error: Exception,
    region: RegionEntry,
    calls: Sequence[RegionCall],
    current: OpEntry | None,
    forms: Forms,
    sizes: Sizes,
) -> StepError:
    """What an exception out of a region's function was about. `current`: the op at work, where that is known."""
    located = locate(error.__traceback__, calls)
    op, call = current or located.op, located.call
    ops = (op,) if op is not None else call.ops if call is not None else ()
    code = code_of(error)
    makes = _makes(op, call)
    facts: Facts = (*said_in_full(error), *of_ops(ops, region))
    if makes:
        facts += (("makes", shortlist([f"`{value}` {forms.said(value, sizes)}" for value in makes], _MOST)),)
    return StepError(
        Found(
            code,
            _message(code, error, op, call, region, makes),
            ops,
            region,
            facts,
            way_out(code, error),
            (*_covers(op, call), *_surprises(located, region, calls, forms, sizes)),
            exact=not is_late(error),
        )
    )


def of_ops(ops: Sequence[OpEntry], region: RegionEntry) -> Facts:
    """The ops of a finding, their layer, and the region, to show."""
    facts: Facts = ()
    if ops:
        layer = "none" if ops[0].layer is None else str(ops[0].layer)
        facts = (("op", ", ".join(f"{op.id} ({op.kind})" for op in ops)), ("layer", layer))
    return (*facts, ("region", region.id))


def wrong_form(value: str, tensor: object, region: RegionEntry, op: OpEntry, forms: Forms, sizes: Sizes) -> StepError:
    """What an op, or a call that covers it, made of a value is not what the manifest says."""
    return StepError(
        Found(
            "DSV844",
            f"`{op.id}` made `{value}` as {form(tensor)}, expected {forms.said(value, sizes)}",
            (op,),
            region,
            of_ops((op,), region),
            way_out("DSV840"),
        )
    )


def moved_state(value: str, region: RegionEntry, op: OpEntry) -> StepError:
    """Session state was returned somewhere else than in its pool."""
    message = f"`{op.id}` returned `{value}` somewhere else than in its pool, where later steps look for it"
    return StepError(Found("DSV844", message, (op,), region, of_ops((op,), region), way_out("DSV840")))


def _makes(op: OpEntry | None, call: RegionCall | None) -> list[str]:
    if op is not None:
        return list(op.writes.values())
    return [] if call is None else list(call.writes.values())


def _message(
    code: str, error: Exception, op: OpEntry | None, call: RegionCall | None, region: RegionEntry, makes: list[str]
) -> str:
    who = f"region `{region.id}`"
    if op is not None:
        who = f"`{op.id}`"
    elif call is not None:
        who = f"the fused call `{call.kind}` in region `{region.id}`"
    if makes:
        who = f"{who}, which makes {shortlist([f'`{value}`' for value in makes], _MOST)},"
    if code == "DSV841":
        return f"no memory left for {who.rstrip(',')}: {said(error)}"
    if code == "DSV843":
        return f"the kernel of {who} cannot be compiled or launched here: {said(error)}"
    if is_late(error):
        return f"the device reported an error when {who} was asked for: {said(error)}"
    return f"{who} failed: {said(error)}"


def _covers(op: OpEntry | None, call: RegionCall | None) -> tuple[str, ...]:
    if call is None or not call.fused:
        return ()
    ops = ", ".join(f"`{each.id}`" for each in call.ops)
    which = "the kernel does not tell which of them failed" if op is None else f"it was at `{op.id}`"
    return (f"the fused call `{call.kind}` covers {ops}; {which}",)


def _surprises(
    located: Located, region: RegionEntry, calls: Sequence[RegionCall], forms: Forms, sizes: Sizes
) -> tuple[str, ...]:
    """What was made before and has another form than it should: what failed may only be the first to mind."""
    layer = calls[0].ops[0].layer if calls else None
    makers = {value: op for call in calls for op in call.ops for value in op.writes.values()}
    known = {value: located.names.get(identifier(value, layer)) for value in (*region.reads, *makers)}
    there: Mapping[str, object] = {value: tensor for value, tensor in known.items() if isinstance(tensor, Tensor)}
    notes = []
    for value in forms.unfit(there, sizes):
        by = f"made by `{makers[value].id}`" if value in makers else "which came from outside the region"
        notes.append(f"`{value}`, {by}, is {form(there[value])} where the plan says {forms.said(value, sizes)}")
    return tuple(notes[:_MOST])
