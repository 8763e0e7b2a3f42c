"""The fused kinds on a GPU: decode kernels for one token of a few sessions, batched ones for many rows.

Signatures are those of `kernels.fusion`; meanings those of the ops they cover. Decode kernels read packed weights only,
batched ones plain matrices as well; experts that are not packed go through the composed reference kernels.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dsv41c.kernels.fusion import FUSED
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


def attention_output(step: Step, query: Tensor, *others: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """window_kv, streams."""
    streams = others[2]
    whole = not step.window_begin  # decode kernels take the ring for whole
    if whole and _few(query, query.shape[3], streams.shape[2]) and is_fp8(*others[-2:]):  # wo_a, wo_b
        return decode_attention.attention_output(step, query, *others, **named)
    return prefill_fused.attention_output_rows(step, query, *others, **named)


def ffn(step: Step, streams: Tensor, pre: Tensor, *weights: Any, **attrs: Any) -> tuple[Tensor, Tensor]:
    """pre, streams."""
    routed, shared = weights[6:9], weights[9:12]
    if not is_fp4(*routed):
        composed = compose(FUSED["ffn"], kernels_for("cuda", "static"))
        return composed(step, streams, pre, *weights, **attrs)  # type: ignore[no-any-return]
    if _few(streams, streams.shape[2]) and is_fp8(*shared):
        return decode_ffn.ffn(step, streams, pre, *weights, **attrs)
    return prefill_fused.ffn_rows(step, streams, pre, *weights, **attrs)


def logits(step: Step, streams: Tensor, pre: Tensor, *weights: Any, **attrs: Any) -> Tensor:
    """Logits f32 [B, T, V]."""
    if _few(streams):
        return decode_ffn.logits(step, streams, pre, *weights, **attrs)
    return prefill_fused.logits_rows(step, streams, pre, *weights, **attrs)


NATIVE = {"attention_input": attention_input, "attention_output": attention_output, "ffn": ffn, "logits": logits}
