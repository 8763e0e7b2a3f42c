"""The quantisation block of a model config: which encodings the checkpoint's weights have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsv41c.compiler.importing import keys
from dsv41c.compiler.source import Node, Poison, shown, shown_key, to_data
from dsv41c.compiler.spec.findings import head
from dsv41c.diagnostics import Diagnostic, Label, Sink

NATIVE = {"linear": "fp8_32x32", "experts": "fp4_32", "engram": "fp8_row32", "scale": "e8m0"}
MXFP8 = {**NATIVE, "linear": "fp8_row32"}
PLAIN = {"linear": "bf16", "experts": "bf16", "engram": "bf16", "scale": "e8m0"}


def check_quantisation(places: Sequence[tuple[str, Node]], root: Node, sink: Sink) -> Mapping[str, str]:
    """The `weights` section that a config means. `places` are the levels that may hold the block, by name."""
    blocks = [(level, node) for level, place in places if (node := place.get("quantization_config")) is not None]
    blocks = [(level, node) for level, node in blocks if node.value is not None]
    if len(blocks) > 1 and to_data(blocks[0][1]) != to_data(blocks[1][1]):
        labels = (Label(blocks[0][1].key, "the other place"),) if blocks[0][1].key else ()
        message = "`quantization_config` and `text_config.quantization_config` disagree"
        facts = (("top level", shown(to_data(blocks[0][1]))), ("text_config", shown(to_data(blocks[1][1]))))
        sink.add(Diagnostic("DSV231", message, blocks[1][1].key, labels, facts, "keep the one that is right"))
    if blocks:
        _check_block(blocks[0][1], sink)
        block = blocks[0][1].value
        size = block.get("weight_block_size") if isinstance(block, Mapping) else None
        return MXFP8 if size is not None and to_data(size) == (1, 32) else NATIVE
    return _flat(root, sink)


def _check_block(block: Node, sink: Sink) -> None:
    """Every key of the block has the official value."""
    if not isinstance(block.value, Mapping):
        if not isinstance(block.value, Poison):
            facts: tuple[tuple[str, str], ...] = (("expected", ", ".join(keys.QUANTISATION)),)
            message = f"`quantization_config` is {shown(to_data(block))}, expected a map"
            sink.add(Diagnostic("DSV203", message, head(block.span), facts=facts, help="write a map here"))
        return
    flavour = _flavour(block)
    if flavour is not None:
        sink.add(flavour)
        return
    for name, node in block.value.items():
        value = to_data(node)
        allowed = keys.QUANTISATION.get(name)
        if isinstance(value, Poison) or (allowed is not None and value in allowed):
            continue
        if allowed is None:
            expected = "no such key"
            message = f"`quantization_config.{shown_key(name)}` is unknown, and could change what scales mean"
        else:
            expected = " or ".join(shown(each) for each in allowed if each is not None)
            message = f"`quantization_config.{name}` is {shown(value)}, expected {expected}"
        facts = (("expected", expected), ("given", shown(value)))
        sink.add(Diagnostic("DSV232", message, node.key or node.span, facts=facts, help=_HELP))
    for name in keys.REQUIRED_QUANTISATION:
        if name not in block.value:
            expected = shown(keys.QUANTISATION[name][0])
            message = f"`quantization_config` has no `{name}`, expected {expected}"
            place = block.key or head(block.span)
            sink.add(Diagnostic("DSV232", message, place, facts=(("expected", expected),), help=_HELP))


def _flavour(block: Node) -> Diagnostic | None:
    """The finding for a flavour that is known and not read, whatever else the block says."""
    assert isinstance(block.value, Mapping)
    for name, node in block.value.items():
        shows = name if name in keys.FLAVOURS else node.value if name == "quant_method" else None
        if isinstance(shows, str) and shows in keys.FLAVOURS:
            message = f"the checkpoint is quantised by {keys.FLAVOURS[shows]}, which is not read here"
            facts = (
                (f"quantization_config.{name}", shown(to_data(node))),
                ("read here", "the official FP8/FP4 layout"),
            )
            return Diagnostic("DSV232", message, node.key or node.span, facts=facts, help=_HELP)
    return None


def _flat(root: Node, sink: Sink) -> Mapping[str, str]:
    """Encodings by the flat keys of the inference code: `dtype`, `expert_dtype`, `scale_fmt`, `scale_dtype`."""
    dtype, expert = root.get("dtype"), root.get("expert_dtype")
    scales = [(name, root.get(name), allowed) for name, allowed in (("scale_fmt", "ue8m0"), ("scale_dtype", "fp8"))]
    if dtype is not None and dtype.value == "fp8":
        wanted = [("expert_dtype", expert, "fp4"), *scales]
        for name, node, allowed in wanted:
            value = None if node is None else node.value
            if value != allowed and (value is not None or name == "expert_dtype"):
                given = "absent" if node is None else shown(to_data(node))
                place = (node or dtype).key or head(root.span)
                wrong = (("expected", allowed), ("given", given))
                message = f"`{name}` is {given}, expected `{allowed}` with `dtype` fp8"
                sink.add(Diagnostic("DSV232", message, place, facts=wrong, help=_HELP))
        return NATIVE
    if expert is not None and expert.value is not None:
        message = f"`expert_dtype` is {shown(to_data(expert))} without `dtype` fp8"
        expected = (("expected", "dtype fp8 with expert_dtype fp4"),)
        sink.add(Diagnostic("DSV232", message, expert.key or expert.span, facts=expected, help=_HELP))
    message = "the config has no `quantization_config`, took weights to be plain bf16"
    facts = tuple((f"weights.{kind}", PLAIN[kind]) for kind in ("linear", "experts", "engram"))
    help_text = "give the whole config.json if the checkpoint is in the official FP8/FP4 layout"
    sink.add(Diagnostic("DSV236", message, head(root.span), facts=facts, help=help_text))
    return PLAIN


_HELP = "use a checkpoint in the official layout: FP8 in 32x32 blocks or MXFP8, FP4 experts, ue8m0 scales"
