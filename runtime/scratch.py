"""What a kernel holds for itself while it runs, as far as it is known: from what it is called on, no torch.

Of native kernels what they allocate for many rows, where it is not small: second copies of wide values, matrices
decoded once, pairs of tokens and experts, blocks of scores. Of plain torch kernels the blocks that bound them, and f32
copies of what they read and write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from dsv41c.kernels.fusion import FUSED
from dsv41c.runtime.manifest import OpEntry, WeightEntry

# Bounds that kernels keep; a test compares them with the kernels' own.
DECODE_ONCE_ROWS = 256  # rows from which a packed matrix is decoded whole: kernels.triton.matmul
SCORE_KEYS = 1 << 27  # int16 keys of scores at once: kernels.triton.select
PAIR_PLACES = 128  # places of a tile of pairs, at most: kernels.triton.grouped
BLOCK_ELEMENTS = 1 << 24  # elements at once of blocks in kernels.reference: gathered rows, dots, sorted scores
_F32 = 4


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel: `ops` by kind, `rows` tokens of `sessions`, bytes and shapes of step values, weights by id.

    `width`: bytes of a compute element; `returned` and `hidden`: bytes of the values that the call returns, and of
    those of its ops that it does not.
    """

    kind: str
    ops: Mapping[str, OpEntry]
    sessions: int
    rows: int
    width: int
    returned: int
    hidden: int
    values: Mapping[str, int]
    shapes: Mapping[str, list[int | str]]
    weights: Mapping[str, WeightEntry]

    def read(self, kind: str, port: str) -> int:
        """Bytes of a value that an op of the call reads."""
        return self.values[self.ops[kind].reads[port]]

    def written(self, kind: str, port: str) -> int:
        """Bytes of a value that an op of the call writes."""
        return self.values[self.ops[kind].writes[port]]

    def weight(self, kind: str, name: str) -> WeightEntry:
        """A weight of an op of the call."""
        return self.weights[self.ops[kind].weights[name]]

    def decoded(self, kind: str, name: str) -> int:
        """Bytes of a packed matrix that is decoded whole for many rows, none for few."""
        entry = self.weight(kind, name)
        packed = entry.dtype == "stored" and entry.stored.startswith("fp8")
        return prod(entry.shape) * self.width if packed and self.rows >= DECODE_ONCE_ROWS else 0


def peak_of(call: Call, *, native: bool) -> int:
    """Bytes that a kernel allocates and holds at once, at most, beside what it reads: what it returns among them."""
    if native:
        return max(call.returned, _NATIVE[call.kind](call) if call.kind in _NATIVE else 0)
    kinds = [kind for kind in (FUSED[call.kind].covers if call.kind in FUSED else (call.kind,)) if kind in call.ops]
    return max(call.returned + call.hidden, call.hidden + max(_plain(call, kind) for kind in kinds))


# --- native kernels ---------------------------------------------------------------------------------------------------


def _attention_input(call: Call) -> int:
    return call.returned + max(call.written("query", "query"), call.decoded("query", "wq_b"))


def _attention_output(call: Call) -> int:
    low = call.rows * call.weight("output", "wo_a").shape[0] * call.width
    out = call.written("output", "sublayer_out")
    first, second = call.decoded("output", "wo_a") + 2 * low, call.decoded("output", "wo_b") + low + out
    return call.written("attend", "attended") + max(first, second, out + call.returned)


def _ffn(call: Call) -> int:
    experts, (inter, dim) = call.weight("route", "gate").shape[0], call.weight("experts", "w1").shape
    row = call.rows * call.width
    pairs = call.rows * int(call.ops["route"].attrs["active"])
    places = min(PAIR_PLACES, max(16, 1 << (max(1, pairs // experts) - 1).bit_length()))
    hidden = (pairs // places + min(experts, pairs)) * places * inter * call.width
    shared = 3 * row * inter + call.decoded("shared_expert", "w1")
    ending = row * (inter + dim) + call.returned
    return 2 * row * dim + pairs * dim * call.width + max(hidden, shared, ending)


def _attention_output_shard(call: Call) -> int:
    return max(_attention_output(call), call.returned + _meeting(call))


def _ffn_shard(call: Call) -> int:
    return max(_ffn(call), call.returned + _meeting(call))


def _meeting(call: Call) -> int:
    """A part, the sum in its place, and that rounded."""
    return 2 * call.read("all_reduce", "sublayer_out") + call.written("all_reduce", "sublayer_out")


def _engram_gate(call: Call) -> int:
    projected = call.rows * call.weight("engram_gate", "wkv").shape[0] * call.width
    return projected + max(call.decoded("engram_gate", "wkv"), call.returned)


def _scores(call: Call) -> int:
    return call.returned + 2 * min(SCORE_KEYS, call.written("index_score", "index_score") // _F32)


def _compress(call: Call) -> int:
    return call.returned + 2 * call.rows * call.weight("compress", "wkv").shape[0] * _F32


_NATIVE: Mapping[str, Callable[[Call], int]] = MappingProxyType(
    {
        "attention_input": _attention_input,
        "attention_output": _attention_output,
        "attention_output_shard": _attention_output_shard,
        "ffn": _ffn,
        "ffn_shard": _ffn_shard,
        "engram_gate": _engram_gate,
        "index_candidates": _scores,
        "index_select": _scores,
        "compress": _compress,
        "index_query": lambda call: call.returned + call.written("index_query", "index_query"),
        "logits": lambda call: call.returned + 2 * call.written("norm", "normed"),
    }
)

# --- plain torch ------------------------------------------------------------------------------------------------------


def _plain(call: Call, kind: str) -> int:
    """Of an op's plain torch kernel: what is known of it, or two f32 copies of the widest value it reads or writes."""
    if kind in _PLAIN:
        return _PLAIN[kind](call)
    op = call.ops[kind]
    widest = max((call.values[value] for value in (*op.reads.values(), *op.writes.values())), default=0)
    return call.returned + 2 * widest * _F32 // min(_F32, call.width)


def _expand(call: Call) -> int:
    """The streams in f32: a product for each stream of theirs, and two sums of these."""
    streams = call.ops["expand"].reads["streams"]
    return (int(call.shapes[streams][-2]) + 2) * call.values[streams] * _F32 // call.width


def _attend(call: Call) -> int:
    """Rows of a block of queries: those gathered, with the window's in one piece, as f32; and three of its scores."""
    op = call.ops["attend"]
    heads, channels = (int(size) for size in call.shapes[op.reads["query"]][-2:])
    window, selected = int(op.attrs["window"]), int(call.shapes[op.reads["topk"]][-1]) if "topk" in op.reads else 0
    rows = window + selected
    queries = min(call.rows, max(1, BLOCK_ELEMENTS // (channels * rows)))
    gathered, joined = selected * call.width, rows * call.width if selected else 0
    as_f32 = 0 if selected and call.width == _F32 else rows * _F32
    before = call.returned if queries < call.rows else 0
    return before + queries * (channels * (gathered + joined + as_f32) + 3 * heads * rows * _F32)


def _index_score(call: Call) -> int:
    """The keys of every session in f32, and a block of dots, which are then weighted."""
    op = call.ops["index_score"]
    heads, channels = (int(size) for size in call.shapes[op.reads["index_query"]][-2:])
    scores = call.written("index_score", "index_score") // _F32
    keys = scores // max(1, call.rows) * call.sessions * channels
    dots = min(BLOCK_ELEMENTS, scores * heads)
    before = scores * _F32 if dots < scores * heads else 0
    weighted = max(dots * (_F32 + call.width), (2 * dots + dots // heads) * call.width)
    return before + max(keys * (_F32 + call.width), keys * _F32 + weighted)


def _select_topk(call: Call) -> int:
    return call.returned + 3 * min(BLOCK_ELEMENTS * _F32, call.read("select_topk", "index_score"))


def _experts(call: Call) -> int:
    return call.written("experts", "routed") + 3 * prod(call.weight("experts", "w1").shape) * _F32


_PLAIN: Mapping[str, Callable[[Call], int]] = MappingProxyType(
    {
        "expand": _expand,
        "attend": _attend,
        "index_score": _index_score,
        "select_topk": _select_topk,
        "experts": _experts,
    }
)
