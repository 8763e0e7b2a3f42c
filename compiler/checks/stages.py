"""Checks of the placement: stages cover every layer once and in order, on devices of one family."""

from __future__ import annotations

from dsv41c.compiler.checks.ledger import Fact, Ledger
from dsv41c.compiler.checks.view import View
from dsv41c.diagnostics import Diagnostic, Label
from dsv41c.words import counted

_STAGES: Fact = ("list", "placement")


def stages_and_devices(view: View, ledger: Ledger) -> None:
    """Every stage has a device."""
    placement = view.placement
    if placement is None or len(placement.devices) == len(placement.layer_ends):
        return
    devices, ends = len(placement.devices), len(placement.layer_ends)
    message = f"`layer_ends` makes {counted(ends, 'stage')}, `devices` has {counted(devices, 'device')}"
    labels = (Label(view.place("placement", "devices"), counted(devices, "device")),)
    facts = (("placement.devices", str(devices)), ("placement.layer_ends", str(ends)))
    help_text = "give each stage its device; a device may come again"
    place = view.place("placement", "layer_ends")
    ledger.report(Diagnostic("DSV503", message, place, labels, facts, help_text), [_STAGES])


def stages_in_order(view: View, ledger: Ledger) -> None:
    """Stages are consecutive runs of layers, none of them empty."""
    if view.placement is None:
        return
    ends = view.placement.layer_ends
    highest = 0
    for index, end in enumerate(ends):
        if end > highest:
            highest = end
            continue
        before = f"`layer_ends[{index - 1}]` is {ends[index - 1]}" if index else "stages start at layer 0"
        message = f"stage {index} ends at layer {end} and holds no layer: {before}"
        facts = ((f"placement.layer_ends[{index}]", str(end)), ("layers placed before it", str(highest)))
        labels = (Label(view.place("placement", "layer_ends", index - 1), "the stage before"),) if index else ()
        help_text = "write ascending ends, each the layer after the last one of its stage"
        place = view.place("placement", "layer_ends", index)
        ledger.report(Diagnostic("DSV502", message, place, labels, facts, help_text))
        return


def stages_cover(view: View, ledger: Ledger) -> None:
    """The stages hold all layers of the model, and no others."""
    placement, model = view.placement, view.model
    if placement is None or model is None or not placement.layer_ends or not ledger.sound(_STAGES):
        return
    ends, layers = placement.layer_ends, model.n_layers
    beyond = [index for index, end in enumerate(ends) if end > layers]
    if not beyond and max(ends) == layers:
        return
    index = beyond[0] if beyond else len(ends) - 1
    end = ends[index]
    if beyond:
        message = f"stage {index} ends at layer {end}, the model has {counted(layers, 'layer')}"
    else:
        message = f"the last stage ends at layer {end}, the model has {counted(layers, 'layer')}"
    facts = ((f"placement.layer_ends[{index}]", str(end)), ("model.n_layers", str(layers)))
    help_text = f"end the last stage at {layers}, and the others before it"
    labels = (Label(view.place("model", "n_layers"), counted(layers, "layer")),)
    place = view.place("placement", "layer_ends", index)
    ledger.report(Diagnostic("DSV501", message, place, labels, facts, help_text))


def one_family(view: View, ledger: Ledger) -> None:
    """A plan is for devices of one family."""
    if view.placement is None:
        return
    families = [device.partition(":")[0] for device in view.placement.devices]
    for index, family in enumerate(families):
        if family == families[0]:
            continue
        message = f"stage {index} is on a `{family}` device, stage 0 on a `{families[0]}` device"
        labels = (Label(view.place("placement", "devices", 0), f"family `{families[0]}`"),)
        facts = tuple((f"placement.devices[{number}]", view.placement.devices[number]) for number in (0, index))
        help_text = "place all stages on devices of one family"
        place = view.place("placement", "devices", index)
        ledger.report(Diagnostic("DSV504", message, place, labels, facts, help_text))
        return
