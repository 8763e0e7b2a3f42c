"""Other layouts of the official tensors: one table of names, the roles they stand for, and what has to be done to them.

The guide `examples/11_checkpoint_names.md` is made of this table. Names are looked up after a wrapper's prefix is off.
Nothing here guesses: a name stands for one thing, and where a name alone does not say how its rows lie, the checkpoint
declares it (`DECLARATIONS`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Literal, NamedTuple

from dsv41c.kernels.catalog import WEIGHT_ROLES

# What is done to a stored tensor, and the words of the guide for it.
Transform = Literal["same", "stacked", "halves", "stacked halves", "side by side"]
TRANSFORMS: Mapping[Transform, str] = MappingProxyType(
    {
        "same": "the tensor as it is",
        "stacked": "a tensor of three dimensions: item e is the matrix of expert e",
        "halves": "the rows of one matrix, then those of the other; of gate and up as declared",
        "stacked halves": "a tensor of three dimensions: item e is the two matrices of expert e, as halves",
        "side by side": "a row is its E4M3 codes, then the E8M0 scales of every 32 of them",
    }
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A name that stands for official tensors: `<a|b>` in it are alternatives, `{layer}` and `{expert}` numbers.

    `roles` are those of the catalogue, or an official name that is no role. Of a quantised matrix the scale is named
    likewise, with any ending of `names.SCALE_SUFFIXES` instead of `.weight`. `used_by` is who writes it so.
    """

    used_by: str
    name: str
    roles: tuple[str, ...]
    transform: Transform = "same"


_BIAS_VL = "layers.{layer}.ffn.gate.bias_vl"
# The released model's own implementation and later ports disagree about the names of the two sublayers, and mix them.
_ATTN, _FFN = "layers.{layer}.<self_attn|attn>.", "layers.{layer}.<mlp|ffn>."
_HF, _VLLM, _MERGED, _OURS = "Transformers", "vLLM", "merged", "`dsv41c repack`"

VARIANTS: tuple[Variant, ...] = (
    Variant(_HF, "embed_tokens.weight", ("embed",)),
    Variant(_HF, "lm_head.weight", ("head",)),
    Variant(_HF, "layers.{layer}.input_layernorm.weight", ("attn_norm",)),
    Variant(_HF, "layers.{layer}.post_attention_layernorm.weight", ("ffn_norm",)),
    *(Variant(_HF, f"layers.{{layer}}.attn_hc.{part}", (f"hc_attn_{part}",)) for part in ("fn", "scale", "base")),
    *(Variant(_HF, f"layers.{{layer}}.<ffn|mlp>_hc.{part}", (f"hc_ffn_{part}",)) for part in ("fn", "scale", "base")),
    Variant(_HF, _ATTN + "<q_a_proj|wq_a>.weight", ("wq_a",)),
    Variant(_HF, _ATTN + "<q_a_norm|q_a_layernorm|q_norm>.weight", ("q_norm",)),
    Variant(_HF, _ATTN + "<q_b_proj|wq_b>.weight", ("wq_b",)),
    Variant(_HF, _ATTN + "<kv_proj|wkv>.weight", ("wkv",)),
    Variant(_HF, _ATTN + "kv_norm.weight", ("kv_norm",)),
    Variant(_HF, _ATTN + "<sinks|attn_sink>", ("attn_sink",)),
    Variant(_HF, _ATTN + "<o_a_proj|wo_a>.weight", ("wo_a",)),
    Variant(_HF, _ATTN + "<o_b_proj|wo_b>.weight", ("wo_b",)),
    Variant(_HF, _ATTN + "compressor.<kv_proj|wkv>.weight", ("compressor_wkv",)),
    Variant(_HF, _ATTN + "compressor.<gate_proj|wgate>.weight", ("compressor_wgate",)),
    Variant(_HF, _ATTN + "compressor.<kv_norm|norm>.weight", ("compressor_norm",)),
    Variant(_VLLM, _ATTN + "compressor.fused_wkv_wgate.weight", ("compressor_wkv", "compressor_wgate"), "halves"),
    Variant(_HF, _ATTN + "indexer.<k_proj|wk>.weight", ("indexer_wk",)),
    Variant(_HF, _ATTN + "indexer.k_norm.weight", ("indexer_k_norm",)),
    Variant(_HF, _ATTN + "indexer.<q_b_proj|wq_b>.weight", ("indexer_wq_b",)),
    Variant(_HF, _ATTN + "indexer.weights_proj.weight", ("indexer_weights_proj",)),
    Variant(_HF, _FFN + "gate.weight", ("gate",)),
    Variant(_HF, _FFN + "gate.<e_score_correction_bias|bias>", ("gate_bias",)),
    Variant(_HF, _FFN + "gate.<e_score_correction_bias_vl|bias_vl>", (_BIAS_VL,)),
    Variant(_HF, _FFN + "experts.{expert}.<gate_proj|w1>.weight", ("experts_w1",)),
    Variant(_HF, _FFN + "experts.{expert}.<down_proj|w2>.weight", ("experts_w2",)),
    Variant(_HF, _FFN + "experts.{expert}.<up_proj|w3>.weight", ("experts_w3",)),
    Variant(_HF, _FFN + "experts.gate_up_proj", ("experts_w1", "experts_w3"), "stacked halves"),
    Variant(_VLLM, _FFN + "experts.w13_weight", ("experts_w1", "experts_w3"), "stacked halves"),
    Variant(_VLLM, _FFN + "experts.w2_weight", ("experts_w2",), "stacked"),
    Variant(_MERGED, _FFN + "experts.<gate_proj|w1>", ("experts_w1",), "stacked"),
    Variant(_MERGED, _FFN + "experts.<down_proj|w2>", ("experts_w2",), "stacked"),
    Variant(_MERGED, _FFN + "experts.<up_proj|w3>", ("experts_w3",), "stacked"),
    Variant(_HF, _FFN + "shared_experts.<gate_proj|w1>.weight", ("shared_w1",)),
    Variant(_HF, _FFN + "shared_experts.<down_proj|w2>.weight", ("shared_w2",)),
    Variant(_HF, _FFN + "shared_experts.<up_proj|w3>.weight", ("shared_w3",)),
    Variant(_VLLM, _FFN + "shared_experts.gate_up_proj.weight", ("shared_w1", "shared_w3"), "halves"),
    Variant(_HF, "layers.{layer}.engram.embed_tokens.weight", ("engram_table",)),
    Variant(_OURS, "layers.{layer}.engram.embed.rows", ("engram_table",), "side by side"),
)

GATE_UP, NIBBLES = "dsv41c.gate_up", "dsv41c.nibbles"
# What a checkpoint may declare in the `metadata` of its index or of its files: the values, the usual one first.
DECLARATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        GATE_UP: ("gate_up", "up_gate", "gate_up_interleaved", "up_gate_interleaved"),
        NIBBLES: ("low_first", "high_first"),
    }
)

# The release says `.scale`; re-exports spell it the other ways. All of them multiply. Tensors of three dimensions are
# named bare, and so are their scales.
SCALE_SUFFIXES = (".scale", ".weight_scale", ".weight_scale_inv")
_BARE_SCALES = {"_scale": ".weight_scale", "_scale_inv": ".weight_scale_inv"}
_NUMBER = re.compile(r"(?<=\.)(?:0|[1-9]\d{0,8})(?=\.)")


class Known(NamedTuple):
    """What a stored name stands for: official names, `{expert}` still open where the tensor holds several."""

    officials: tuple[str, ...]
    transform: Transform


def known(name: str) -> Known | None:
    """What a name without prefix stands for, if it is one of the table. Official names may be among them."""
    found = _TABLE.get(_NUMBER.sub("#", name))
    if found is None:
        return None
    numbers = _NUMBER.findall(name)
    return Known(tuple(_numbered(official, numbers) for official in found.officials), found.transform)


def others(official: str) -> tuple[str, ...]:
    """The other names of one tensor that an official name is looked for under, merged ones among them."""
    numbers = _NUMBER.findall(official)
    open_name = _NUMBER.sub("#", official)
    found = [name for name, entry in _TABLE.items() if open_name in map(_closed, entry.officials) and name != open_name]
    return tuple(_numbered(name.replace("#", "{}"), numbers) for name in found)


def official_name(role: str) -> str:
    """The official name of a role; an official name is its own."""
    return WEIGHT_ROLES[role].name if role in WEIGHT_ROLES else role


def spelled(name: str) -> Iterator[str]:
    """A name of the table in each of its spellings."""
    parts = re.split(r"<([^>]*)>", name)
    yield from map("".join, product(*(part.split("|") if place % 2 else [part] for place, part in enumerate(parts))))


def _numbered(name: str, numbers: list[str]) -> str:
    """A name with numbers put where they belong, in order. The expert's stays open where there is none for it."""
    for number in numbers:
        name = re.sub(r"\{(?:layer|expert|)\}", number, name, count=1)
    return name


def _closed(official: str) -> str:
    return official.replace("{layer}", "#").replace("{expert}", "#")


def _endings(variant: Variant, name: str) -> Iterator[tuple[str, str]]:
    """The names of a tensor and of its scales, each with the ending that replaces `.weight` in the official name."""
    base = name.removesuffix(".weight")
    if variant.transform == "side by side":
        yield name, ".weight"
    elif variant.transform.startswith("stacked"):
        yield from ((base, ".weight"), (f"{base}.weight", ".weight"))
        yield from ((base + bare, ending) for bare, ending in _BARE_SCALES.items())
        yield from ((base + ending, ending) for ending in SCALE_SUFFIXES)
    else:
        yield name, ".weight"
        if base != name:
            yield from ((base + ending, ending) for ending in SCALE_SUFFIXES)


def _made() -> Iterator[tuple[str, Known]]:
    for variant in VARIANTS:
        officials = [official_name(role) for role in variant.roles]
        for name in spelled(variant.name):
            for stored, ending in _endings(variant, name):
                named = (o.removesuffix(".weight") + ending if o.endswith(".weight") else o for o in officials)
                yield _closed(stored), Known(tuple(named), variant.transform)


_TABLE: Mapping[str, Known] = MappingProxyType(dict(_made()))
