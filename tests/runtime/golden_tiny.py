"""The golden checkpoint as plans: what the tests of the runtime share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dsv41c.kernels.reference.encodings import dense
from dsv41c.runtime.constants import make_constants
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import Plan, load_plan
from dsv41c.runtime.steps import load_weights
from dsv41c.runtime.weights.bind import Experts

torch.set_num_threads(1)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TINY = GOLDEN / "tiny"
MODES = {
    "f32-act_none-kv_none": ("f32", "none", "none"),
    "f32-act_none-kv_reference": ("f32", "none", "reference"),
    "f32-act_fp8-kv_reference": ("f32", "fp8", "reference"),
    "bf16-act_fp8-kv_reference": ("bf16", "fp8", "reference"),
}
ORACLE = "f32-act_none-kv_none"
LOGITS_BOUND = 5e-5

SPEC = """\
format: dsv41c.spec/1
name: tiny
model: {n_layers: 10, n_mtp_layers: 0, dim: 128, vocab_size: 512, norm_eps: 1e-20, max_seq_len: 1024}
tokens: {bos: 0, eos: 1, pad: 2}
layers:
  compress_ratios: {0-1: 0, 2-5: 2, 6-9: 1}
  kv_source_layers: [2, 4, 6]
  index_source_layers: [2, 4, 6, 8]
  candidate_source_layer: 6
  engram_layers: [1, 4]
attention: {n_heads: 8, head_dim: 64, rope_head_dim: 16, q_lora_rank: 96, o_groups: 2, o_lora_rank: 32, window_size: 16}
rope:
  theta: 10000
  compress_theta: 160000
  yarn: {factor: 16, original_seq_len: 256, beta_fast: 32, beta_slow: 1}
indexer: {n_heads: 16, head_dim: 32, topk: 8, candidate_topk_blocks: 4, candidate_block_size: 4}
mhc: {streams: 4, sinkhorn_iters: 20, eps: 1e-6}
moe: {n_routed_experts: 8, n_activated_experts: 2, n_shared_experts: 1, inter_dim: 96, score_func: sqrtsoftplus,
  gate_temp: 1.0, route_scale: 1.5, swiglu_limit: 2.0}
engram: {max_ngram_size: 4, n_heads: 2, head_dim: 32, vocab_size: 64, num_embeddings: [462, 630], pad_id: 2,
  compressed_vocab_size: 426, storage: mapped}
weights: {linear: fp8_32x32, experts: fp4_32, engram: fp8_row32, scale: e8m0}
numerics: {compute: COMPUTE, activation_quant: QUANT, kv_cache: CACHE}
placement: {devices: ["cpu:0"], layer_ends: [10]}
runtime: {max_context: 80, max_sessions: 4, prefill_chunk: 64, decode_buckets: [1, 2, 4], capture: layer}
"""


@cache
def plan(mode: str = ORACLE, *changes: tuple[str, str]) -> Plan:
    """The tiny model compiled for a numerics mode, with further changes (old text, new text) of the spec."""
    from dsv41c.compiler.plan import compile_spec, write_plan
    from dsv41c.compiler.spec.load import load

    folder = Path(mkdtemp())
    text = SPEC
    for old, new in (*zip(("COMPUTE", "QUANT", "CACHE"), MODES[mode], strict=True), *changes):
        assert old in text, old
        text = text.replace(old, new)
    (folder / "tiny.yaml").write_text(text)
    loaded = load(str(folder / "tiny.yaml"))
    write_plan(compile_spec(loaded), folder / "plan")
    return load_plan(folder / "plan")


@cache
def packed_weights(mode: str = ORACLE) -> dict[str, object]:
    """The weights as an engine binds them."""
    return load_weights(plan(mode).manifest, TINY)


@cache
def weights(mode: str = ORACLE) -> dict[str, object]:
    """The same values with every expert decoded once instead of at each use: a third of a step's time."""
    dtype = torch.bfloat16 if MODES[mode][0] == "bf16" else torch.float32
    return {
        name: [dense(item, dtype) for item in weight] if isinstance(weight, Experts) else weight
        for name, weight in packed_weights(mode).items()
    }


def weights_for(compiled: Plan, mode: str = ORACLE) -> dict[str, object]:
    """The same values for a plan of fewer layers, whose hash constants are fewer."""
    own = [entry.id for entry in compiled.manifest.constants if entry.id.startswith("engram.")]
    return weights(mode) | make_constants(compiled.manifest, TINY, wanted=own)


@cache
def golden(mode: str = ORACLE) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{mode}.safetensors")


def ids() -> list[int]:
    return golden()["ids"].tolist()


def engine(mode: str = ORACLE, *changes: tuple[str, str], **options: Any) -> Engine:
    """A new engine on shared weights."""
    return Engine(plan(mode, *changes), TINY, weights=weights(mode), **options)


def apart(a: Tensor, b: Tensor) -> float:
    """Largest difference; equal infinities count as equal."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return torch.where(a == b, 0.0, (a.double() - b.double()).abs()).max().item() if a.numel() else 0.0


def golden_feed(value: str, rows: dict[str, Tensor], block: int = 4) -> Tensor:
    """A value of the one prefill of 64, from the golden's keys, with the batch axis the runtime has."""
    kind, _, place = value.partition("@")
    layer, _, part = place.partition(".")
    if kind == "engram_ids":
        return rows["engram_ids"].long()[None]
    if kind in ("streams", "pre"):
        assert part == "ffn"
        return rows[f"{layer}.{kind}"][None]
    tensor = rows[f"{layer}.{kind}"][None]
    if kind == "topk":
        return tensor.long()
    if kind == "candidates":  # the golden has groups ANDed with visibility, the runtime blocks
        return tensor.unflatten(-1, (-1, block)).any(-1)
    return tensor


def prefill_rows(mode: str = ORACLE) -> dict[str, Tensor]:
    """The golden's values of one prefill of 64, without their prefix."""
    head = "prefill64."
    return {key.removeprefix(head): tensor for key, tensor in golden(mode).items() if key.startswith(head)}
