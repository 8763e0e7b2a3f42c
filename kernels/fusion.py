"""Fused kinds: runs of ops that one kernel computes, and which kernels are native. Plain data, no torch.

A fused kind covers op kinds in the order of their calls, each once. Its wiring says what every read port of theirs is
fed by: the write port of an op before it, or a read from outside. Its signature follows from that, in the catalogue's
own form, and its kernel is called by the catalogue's convention, always with `step`:

    writes = kernels.KIND(step, reads, weights, optional reads and weights by name, attrs by name)

Weights and attributes are those of the covered ops, named `{op kind}_{name}` (`query_wq_a`, `mix_eps`). Optional ones,
with which an op gives a shard's part of a sum, belong to the kinds that cover the collective behind it as well. What is
neither read from outside nor among the writes is hidden: no value of a plan shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dsv41c.kernels.catalog import CARRIERS, COLLECTIVES, FAMILIES, OPS, WEIGHT_ROLES, OpKind, Port


@dataclass(frozen=True, slots=True)
class FusedKind:
    """A fused kind. `name`, `summary`, `reads` and the rest of its call form are in `signature`.

    `wires`: by (op kind, read port) either (op kind before it, write port) or ("", name of a read from outside).
    `leaves`: by write of the fused kind, the op kind and port that give it.
    """

    name: str
    summary: str
    covers: tuple[str, ...]
    wires: Mapping[tuple[str, str], tuple[str, str]]
    leaves: Mapping[str, tuple[str, str]]
    signature: OpKind

    def feeds(self, read: str) -> tuple[tuple[str, str], ...]:
        """The ports (op kind, port) that a read from outside feeds, in the order of calls."""
        return tuple(port for port, source in self.wires.items() if source == ("", read))

    def bound(self, ops: Mapping[str, Wired]) -> dict[str, str] | None:
        """The values of its reads from outside, where ops are wired to each other as it says; None where they are not.

        `ops` by op kind: the first of those it covers, or all. An optional port may be left open.
        """
        found: dict[str, str] = {}
        for op, wired in ops.items():
            for port in OPS[op].reads:
                value, wire = wired.reads.get(port.name), self.wires.get((op, port.name))
                if value is None and port.optional:
                    continue
                if value is None or wire is None:
                    return None
                source, name = wire
                if value != (ops[source].writes.get(name) if source else found.setdefault(name, value)):
                    return None
        return found


@dataclass(frozen=True, slots=True)
class Wired:
    """The values that an op reads and writes, by port."""

    reads: Mapping[str, str]
    writes: Mapping[str, str]


def part_name(op: str, name: str) -> str:
    """What a weight or attribute of a covered op is called in the fused kind: `query_wq_a`."""
    return f"{op}_{name}"


def _fused(name: str, covers: str, wires: str, writes: str, summary: str) -> FusedKind:
    """A fused kind from words: `op.port=op.port` or `op.port=read` for wires, `write=op.port` for what leaves."""
    kinds = tuple(covers.split())
    wired = {}
    for word in wires.split():
        port, _, source = word.partition("=")
        op, _, fed_by = source.rpartition(".")
        wired[_pair(port)] = (op, fed_by)
    left = {word.partition("=")[0]: _pair(word.partition("=")[2]) for word in writes.split()}
    meets = any(op in COLLECTIVES for op in kinds)
    signature = OpKind(
        name,
        summary,
        _reads(wired),
        tuple(Port(write, _port(OPS[op].writes, port).kind) for write, (op, port) in left.items()),
        tuple(part_name(op, weight) for op in kinds for weight in OPS[op].weights),
        attrs=tuple(part_name(op, attr) for op in kinds for attr in OPS[op].attrs),
        optional_attrs=tuple(part_name(op, attr) for op in kinds for attr in OPS[op].optional_attrs if meets),
        uses_step=True,
    )
    return FusedKind(name, summary, kinds, MappingProxyType(wired), MappingProxyType(left), signature)


def _pair(word: str) -> tuple[str, str]:
    op, _, port = word.partition(".")
    return op, port


def _port(ports: tuple[Port, ...], name: str) -> Port:
    return next(port for port in ports if port.name == name)


def _reads(wires: Mapping[tuple[str, str], tuple[str, str]]) -> tuple[Port, ...]:
    """The reads from outside in the order of first use. One is optional where every port that it feeds is."""
    ports: dict[str, list[Port]] = {}
    for (op, name), (source, read) in wires.items():
        if not source:
            ports.setdefault(read, []).append(_port(OPS[op].reads, name))
    return tuple(Port(read, fed[0].kind, all(port.optional for port in fed)) for read, fed in ports.items())


_INPUT = "mix.streams=streams collapse.streams=streams collapse.pre=pre norm.x=collapse.collapsed"
_ATTENDED = (
    "attend.query=query attend.window_kv=window_kv attend.window_rows=window_rows attend.compress_kv=compress_kv"
    " attend.topk=topk window_store.window_rows=window_rows window_store.window_kv=window_kv"
    " output.attended=attend.attended"
)
_ONTO = "expand.streams=streams expand.post=post expand.comb=comb"
_EXPERTS = (
    "route.x=norm.normed experts.x=norm.normed experts.expert_weights=route.expert_weights"
    " experts.expert_ids=route.expert_ids shared_expert.x=norm.normed shared_expert.routed=experts.routed"
)
_ONTO_OWN = "expand.streams=streams expand.post=mix.post expand.comb=mix.comb"
_SCORE = "index_score.index_query=index_query index_score.index_weight=index_weight index_score.index_k=index_k"

FUSED: Mapping[str, FusedKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            _fused(
                "attention_input",
                "mix collapse norm query window_rows",
                f"{_INPUT} query.x=norm.normed window_rows.x=norm.normed",
                "pre=mix.pre post=mix.post comb=mix.comb normed=norm.normed query=query.query"
                " query_latent=query.query_latent window_rows=window_rows.window_rows",
                "from the streams to the query and this call's window rows",
            ),
            _fused(
                "attention_output",
                "attend window_store output expand",
                f"{_ATTENDED} expand.sublayer_out=output.sublayer_out {_ONTO}",
                "window_kv=window_store.window_kv streams=expand.streams",
                "attention, its output projection, and back onto the streams; the ring is written behind the attention",
            ),
            _fused(
                "attention_output_shard",
                "attend window_store output all_reduce expand",
                f"{_ATTENDED} all_reduce.sublayer_out=output.sublayer_out"
                f" expand.sublayer_out=all_reduce.sublayer_out {_ONTO}",
                "window_kv=window_store.window_kv streams=expand.streams",
                "a shard's heads, the sum over all shards, and back onto the streams",
            ),
            _fused(
                "ffn",
                "mix collapse norm route experts shared_expert expand",
                f"{_INPUT} {_EXPERTS} expand.sublayer_out=shared_expert.sublayer_out {_ONTO_OWN}",
                "pre=mix.pre streams=expand.streams",
                "the whole expert sublayer, streams to streams",
            ),
            _fused(
                "ffn_shard",
                "mix collapse norm route experts shared_expert all_reduce expand",
                f"{_INPUT} {_EXPERTS} all_reduce.sublayer_out=shared_expert.sublayer_out"
                f" expand.sublayer_out=all_reduce.sublayer_out {_ONTO_OWN}",
                "pre=mix.pre streams=expand.streams",
                "the expert sublayer with a shard's part of every expert, and the sum over all shards",
            ),
            _fused(
                "index_candidates",
                "index_score select_candidates select_topk",
                f"{_SCORE} select_candidates.index_score=index_score.index_score"
                " select_topk.index_score=index_score.index_score",
                "candidates=select_candidates.candidates topk=select_topk.topk",
                "scores of all groups, the blocks that later index sources may select from, and the best groups",
            ),
            _fused(
                "index_select",
                "index_score select_topk",
                f"{_SCORE} index_score.candidates=candidates select_topk.index_score=index_score.index_score",
                "topk=select_topk.topk",
                "scores of the groups, and the best of them",
            ),
            _fused(
                "logits",
                "collapse norm head",
                "collapse.streams=streams collapse.pre=pre norm.x=collapse.collapsed head.x=norm.normed",
                "logits=head.logits",
                "the last collapse, norm and logits",
            ),
        )
    }
)

# Every kind of call that generated code may hold, in the catalogue's form: ops with a kernel, then fused kinds.
CALLS: Mapping[str, OpKind] = MappingProxyType(
    {name: op for name, op in OPS.items() if name not in CARRIERS}
    | {name: kind.signature for name, kind in FUSED.items()}
)

_GPU = (
    "embed",
    "engram_ids",
    "engram_rows",
    "engram_gate",
    "compress",
    "index_keys",
    "index_query",
    "index_score",
    "select_candidates",
    "select_topk",
    *FUSED,
)
# The op kinds and fused kinds that have a native kernel, by family; the others run on the plain torch kernels.
NATIVE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {family: _GPU if family in ("cuda", "rocm") else () for family in FAMILIES}
)
# The registry's variant with native kernels, by family.
NATIVE_VARIANT: Mapping[str, str] = MappingProxyType({"cuda": "triton", "rocm": "triton"})
# What a spec has to say for native kernels to run it; every other one runs on the plain torch kernels.
NATIVE_SPECS: Mapping[str, str] = MappingProxyType(
    {
        "numerics.compute": "bf16",
        "numerics.activation_quant": "none",
        "weights.linear": "fp8_32x32",
        "weights.experts": "fp4_32",
    }
)
# What native kernels are compiled for, in the names of their compiler.
ARCHITECTURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"cuda": ("sm_90", "sm_89"), "rocm": ("gfx942", "gfx1100")}
)

# The weight roles that native kernels take as they are stored, beside experts and tables: quantised matrices packed,
# others as bf16. Of those in WIDE_ROLES a file may hold f32, which stays f32.
WIDE_ROLES = ("gate", "head")
STORED_ROLES = (
    *(role.role for role in WEIGHT_ROLES.values() if role.stored == "linear"),
    *WIDE_ROLES,
    "compressor_wkv",
    "compressor_wgate",
    "indexer_wk",
    "indexer_weights_proj",
)
