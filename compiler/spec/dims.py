"""Rules between single values of a spec: widths that divide, blocks that fill, counts that fit in one another.

Each rule is a generator over the valid sections and yields findings; a rule whose sections are not all valid is
skipped. What concerns the graph (source lists, placement, engram tables) is not here but in `dsv41c.compiler.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isqrt

from dsv41c.compiler.engram_hash import columns
from dsv41c.compiler.source import Path, Spans, dotted
from dsv41c.compiler.spec.findings import head, out_of_range
from dsv41c.compiler.spec.models import (
    Attention,
    Engram,
    Indexer,
    Model,
    Moe,
    Numerics,
    Rope,
    Runtime,
    Section,
    Tokens,
    Weights,
)
from dsv41c.diagnostics import Diagnostic, Label
from dsv41c.kernels.encodings import BLOCKED

BLOCK = 32  # values that share a scale: weights, activations, window KV, index keys
Sections = Mapping[str, Section]


def check(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """Findings of all rules."""
    for rule in RULES:
        yield from rule(sections, spans)


def head_groups(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """Heads split evenly into output groups."""
    attention = sections.get("attention")
    if isinstance(attention, Attention) and attention.n_heads % attention.o_groups:
        message = (
            f"`attention.n_heads` {attention.n_heads} does not divide by `attention.o_groups` {attention.o_groups}"
        )
        yield _indivisible(
            message,
            ("attention", "o_groups"),
            spans,
            (("attention.n_heads", str(attention.n_heads)), ("attention.o_groups", str(attention.o_groups))),
            f"give a divisor of {attention.n_heads}, such as {_divisor(attention.n_heads, attention.o_groups)}",
            ("attention", "n_heads"),
        )


def rope_width(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """Rotated channels come in pairs and fit in the head and in the indexer's head, which is rotated alike."""
    attention, indexer = sections.get("attention"), sections.get("indexer")
    if not isinstance(attention, Attention):
        return
    path: Path = ("attention", "rope_head_dim")
    width = attention.rope_head_dim
    facts = (("attention.rope_head_dim", str(width)),)
    if width % 2:
        message = f"`attention.rope_head_dim` {width} is odd, rotation takes channels in pairs"
        yield _indivisible(message, path, spans, facts, "give an even width")
    holders = [(("attention", "head_dim"), attention.head_dim)]
    if isinstance(indexer, Indexer):
        holders.append((("indexer", "head_dim"), indexer.head_dim))
    for holder, head_dim in holders:
        if width > head_dim:
            more = ((dotted(holder), str(head_dim)),)
            yield out_of_range(path, width, f"at most `{dotted(holder)}`, {head_dim}", spans.value(path), more)
            return


def blocks(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """Every width along which values share a scale is a multiple of the block: one finding a width, all reasons."""
    for path, (width, reasons) in _blocked_widths(sections).items():
        if width % BLOCK:
            facts = ((dotted(path), str(width)), *(("why", reason) for reason in reasons))
            message = f"`{dotted(path)}` {width} is not a multiple of {BLOCK}, the block that shares a scale"
            nearest = max(BLOCK, round(width / BLOCK) * BLOCK)
            yield _indivisible(message, path, spans, facts, f"use a multiple of {BLOCK}, such as {nearest}")


def output_latents(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """Inputs of the two output projections, which are products of widths."""
    attention, weights, numerics = sections.get("attention"), sections.get("weights"), sections.get("numerics")
    if not isinstance(attention, Attention):
        return
    stored = isinstance(weights, Weights) and weights.linear in BLOCKED
    rounded = isinstance(numerics, Numerics) and numerics.activation_quant == "fp8"
    grouped = attention.n_heads * attention.head_dim
    if stored and grouped % attention.o_groups == 0 and grouped // attention.o_groups % BLOCK:
        yield _product("the input of wo_a, heads times head_dim by group,", grouped // attention.o_groups, spans)
    latent = attention.o_groups * attention.o_lora_rank
    if (stored or rounded) and latent % BLOCK:
        yield _product("the input of wo_b, o_groups times o_lora_rank,", latent, spans)


def experts(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """No more active experts than there are."""
    moe = sections.get("moe")
    if isinstance(moe, Moe) and moe.n_activated_experts > moe.n_routed_experts:
        path: Path = ("moe", "n_activated_experts")
        facts = (("moe.n_routed_experts", str(moe.n_routed_experts)),)
        bound = f"at most `moe.n_routed_experts`, {moe.n_routed_experts}"
        yield out_of_range(path, moe.n_activated_experts, bound, spans.value(path), facts)


def token_ids(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """Token ids are rows of the embedding; the token map can only make the vocabulary smaller."""
    model, tokens, engram = sections.get("model"), sections.get("tokens"), sections.get("engram")
    if not isinstance(model, Model):
        return
    ids: dict[Path, int] = {}
    if isinstance(tokens, Tokens):
        ids |= {("tokens", "bos"): tokens.bos, ("tokens", "eos"): tokens.eos, ("tokens", "pad"): tokens.pad}
    if isinstance(engram, Engram):
        ids[("engram", "pad_id")] = engram.pad_id
        ids[("engram", "compressed_vocab_size")] = engram.compressed_vocab_size - 1
    facts = (("model.vocab_size", str(model.vocab_size)),)
    for path, value in ids.items():
        if value >= model.vocab_size:
            counted = path[-1] == "compressed_vocab_size"
            bound = f"{'at most' if counted else 'less than'} `model.vocab_size`, {model.vocab_size}"
            yield out_of_range(path, value + counted, bound, spans.value(path), facts)


def yarn_betas(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """The fast bound of YaRN lies above the slow one."""
    rope = sections.get("rope")
    if isinstance(rope, Rope) and rope.yarn.beta_fast < rope.yarn.beta_slow:
        path: Path = ("rope", "yarn", "beta_fast")
        facts = (("rope.yarn.beta_slow", f"{rope.yarn.beta_slow:g}"),)
        bound = f"at least `rope.yarn.beta_slow`, {rope.yarn.beta_slow:g}"
        yield out_of_range(path, rope.yarn.beta_fast, bound, spans.value(path), facts)


def lengths(sections: Sections, spans: Spans) -> Iterator[Diagnostic]:
    """A session holds no more than the model was made for, and a chunk no more than a session."""
    model, runtime = sections.get("model"), sections.get("runtime")
    if not isinstance(runtime, Runtime):
        return
    path: Path = ("runtime", "max_context")
    if isinstance(model, Model) and runtime.max_context > model.max_seq_len:
        facts = (("model.max_seq_len", str(model.max_seq_len)),)
        bound = f"at most `model.max_seq_len`, {model.max_seq_len}"
        yield out_of_range(path, runtime.max_context, bound, spans.value(path), facts)
    path = ("runtime", "prefill_chunk")
    if runtime.prefill_chunk > runtime.max_context:
        facts = (("runtime.max_context", str(runtime.max_context)),)
        bound = f"at most `runtime.max_context`, {runtime.max_context}"
        yield out_of_range(path, runtime.prefill_chunk, bound, spans.value(path), facts)


RULES: tuple[Callable[[Sections, Spans], Iterator[Diagnostic]], ...] = (
    head_groups,
    rope_width,
    blocks,
    output_latents,
    experts,
    token_ids,
    yarn_betas,
    lengths,
)


def _divisor(number: int, near: int) -> int:
    """The divisor of a number that is nearest to another one, the smaller of two."""
    found = (part for low in range(1, isqrt(number) + 1) if number % low == 0 for part in (low, number // low))
    return min(found, key=lambda part: (abs(part - near), part))


def _blocked_widths(sections: Sections) -> dict[Path, tuple[int, list[str]]]:
    """The widths that must fill blocks: by path the width and why."""
    weights, numerics = sections.get("weights"), sections.get("numerics")
    model, attention, indexer = sections.get("model"), sections.get("attention"), sections.get("indexer")
    moe, engram = sections.get("moe"), sections.get("engram")
    linear, expert, cache = [], [], []
    if isinstance(weights, Weights) and weights.linear in BLOCKED:
        linear.append(f"input of linears stored as {weights.linear}")
    if isinstance(weights, Weights) and weights.experts in BLOCKED:
        expert.append(f"input of experts stored as {weights.experts}")
    if isinstance(numerics, Numerics) and numerics.activation_quant == "fp8":
        linear.append("input of linears with activation_quant fp8")
    if isinstance(numerics, Numerics) and numerics.kv_cache != "none":
        cache.append(f"cache rows are fake-quantised with kv_cache {numerics.kv_cache}")
    blocked_rows = isinstance(weights, Weights) and weights.engram == "fp8_row32"
    rows = ["table rows stored as fp8_row32"] if blocked_rows else []
    found: dict[Path, tuple[int, list[str]]] = {}
    if isinstance(model, Model):
        found[("model", "dim")] = (model.dim, linear + expert)
    if isinstance(attention, Attention):
        found[("attention", "q_lora_rank")] = (attention.q_lora_rank, linear)
        found[("attention", "head_dim")] = (attention.head_dim, cache)
    if isinstance(indexer, Indexer):
        found[("indexer", "head_dim")] = (indexer.head_dim, cache)
    if isinstance(moe, Moe):
        found[("moe", "inter_dim")] = (moe.inter_dim, linear + expert)
    if isinstance(engram, Engram):
        found[("engram", "head_dim")] = (engram.head_dim, rows)
        if linear and not rows and columns(engram) * engram.head_dim % BLOCK:
            found[("engram", "head_dim")] = (engram.head_dim, linear)
    return {path: (width, reasons) for path, (width, reasons) in found.items() if reasons}


def _product(what: str, width: int, spans: Spans) -> Diagnostic:
    message = f"{what} is {width} wide, not a multiple of {BLOCK}, the block that shares a scale"
    path: Path = ("attention", "o_lora_rank" if "wo_b" in what else "head_dim")
    return _indivisible(message, path, spans, (("width", str(width)),), f"make the product a multiple of {BLOCK}")


def _indivisible(
    message: str, path: Path, spans: Spans, facts: tuple[tuple[str, str], ...], help_text: str, other: Path = ()
) -> Diagnostic:
    labels = (Label(head(spans.value(other)), "the other width"),) if other else ()
    return Diagnostic("DSV215", message, head(spans.value(path)), labels, facts, help_text)
