"""The fused kinds on a GPU: decode kernels for one token of a few sessions, batched ones for many rows.

Those of a shard end in a sum over all of them: in the decode kernels themselves where the shards' devices reach each
other's memory, else by the stage's collective between two kernels.

Signatures are those of `kernels.fusion`; meanings those of the ops they cover. Decode kernels read packed weights only,
batched ones plain matrices as well; experts that are not packed go through the composed reference kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dsv41c.kernels.catalog import OPS
from dsv41c.kernels.collectives import Collectives, Mailboxes, connected
from dsv41c.kernels.fusion import FUSED, part_name
from dsv41c.kernels.reference.fused import compose
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import decode_attention, decode_ffn, prefill_fused
from dsv41c.kernels.triton.launch import is_fp4, is_fp8

MOST_SESSIONS = 32  # sessions of one token each that decode kernels take


def _few(rows: Tensor, *widths: int) -> bool:
    """Whether rows [B, T, ...] are one token of a few sessions, and widths the powers of two that decode wants."""
    return rows.shape[1] == 1 and rows.shape[0] <= MOST_SESSIONS and all(width & (width - 1) == 0 for width in widths)


def attention_input(step: Step, streams: Tensor, pre: Tensor, *weights: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """pre, post, comb, normed, query, query_latent, window_rows."""
    widths = streams.shape[2], weights[10].shape[0]  # kv_norm has the channels
    if _few(streams, *widths) and is_fp8(weights[5], weights[7], weights[9]):  # wq_a, wq_b, wkv
        return decode_attention.attention_input(step, streams, pre, *weights, **attrs)
    return prefill_fused.attention_input_rows(step, streams, pre, *weights, **attrs)


def attention_output(
    step: Step, query: Tensor, *others: Any, together: Collectives | None = None, **named: Any
) -> tuple[Tensor, Tensor]:
    """window_kv, streams."""
    streams = others[2]
    few = _few(query, query.shape[3], streams.shape[2]) and is_fp8(*others[-2:])  # wo_a, wo_b
    if few and not step.window_begin:  # decode kernels take the ring for whole
        boxes = _mailboxes(together, streams)
        if together is None or boxes is not None:
            return decode_attention.attention_output(step, query, *others, boxes=boxes, **named)
    return prefill_fused.attention_output_rows(step, query, *others, meet=_meet(together, streams), **named)


def _ffn(
    step: Step, streams: Tensor, pre: Tensor, *weights: Any, together: Collectives | None = None, **attrs: Any
) -> tuple[Tensor, Tensor]:
    """pre, streams. Experts are packed `fp4_32`."""
    if _few(streams, streams.shape[2]) and is_fp8(*weights[9:12]):  # the shared expert
        boxes = _mailboxes(together, streams)
        if together is None or boxes is not None:
            return decode_ffn.ffn(step, streams, pre, *weights, boxes=boxes, **attrs)
    return prefill_fused.ffn_rows(step, streams, pre, *weights, meet=_meet(together, streams), **attrs)


def _mailboxes(together: Collectives | None, streams: Tensor) -> Mailboxes | None:
    return None if together is None else together.mailboxes(MOST_SESSIONS * streams.shape[3])


def _meet(together: Collectives | None, streams: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Sums a part f32 [n, D] over all shards and rounds it once."""
    return None if together is None else lambda part: together.all_reduce(part, streams.dtype)


def ffn(step: Step, streams: Tensor, pre: Tensor, *weights: Any, **attrs: Any) -> tuple[Tensor, Tensor]:
    """pre, streams; experts of any encoding."""
    if not is_fp4(*weights[6:9]):
        composed = compose(FUSED["ffn"], kernels_for("cuda", "static"))
        return composed(step, streams, pre, *weights, **attrs)  # type: ignore[no-any-return]
    return _ffn(step, streams, pre, *weights, **attrs)


def logits(step: Step, streams: Tensor, pre: Tensor, *weights: Any, **attrs: Any) -> Tensor:
    """Logits f32 [B, T, V]."""
    if _few(streams):
        return decode_ffn.logits(step, streams, pre, *weights, **attrs)
    return prefill_fused.logits_rows(step, streams, pre, *weights, **attrs)


class ShardKernels:
    """The kinds of a shard, for the processes that `together` connects; without it they refuse to run."""

    def __init__(self, together: Collectives | None = None) -> None:
        self._together = together

    def attention_output_shard(self, step: Step, *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """window_kv, streams."""
        return attention_output(step, *given, together=self._checked(named), **_of_whole(named))

    def ffn_shard(self, step: Step, streams: Tensor, pre: Tensor, *weights: Any, **attrs: Any) -> tuple[Tensor, Tensor]:
        """pre, streams."""
        if not is_fp4(*weights[6:9]):
            composed = compose(FUSED["ffn_shard"], kernels_for("cuda", "static", self._together))
            return composed(step, streams, pre, *weights, **attrs)  # type: ignore[no-any-return]
        return _ffn(step, streams, pre, *weights, together=self._checked(attrs), **_of_whole(attrs))

    def _checked(self, attrs: dict[str, Any]) -> Collectives:
        """Raises ValueError where there are other processes than the plan has shards."""
        return connected(self._together, attrs["all_reduce_shards"])


def _of_whole(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes that a kind has without shards."""
    return {name: value for name, value in attrs.items() if not name.startswith("all_reduce_") and name not in _PARTS}


_PARTS = tuple(part_name(op, "shards") for op, kind in OPS.items() if "shards" in kind.optional_attrs)


def shard_kernels(together: Collectives | None) -> dict[str, Callable[..., Any]]:
    """The native kernels of a shard by fused kind."""
    kernels = ShardKernels(together)
    return {"attention_output_shard": kernels.attention_output_shard, "ffn_shard": kernels.ffn_shard}


NATIVE: dict[str, Callable[..., Any]] = {
    "attention_input": attention_input,
    "attention_output": attention_output,
    "ffn": ffn,
    "logits": logits,
    **shard_kernels(None),
}
