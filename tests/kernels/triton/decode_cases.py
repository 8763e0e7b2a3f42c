"""Random weights, states and steps for decode kernels: one layer's worth at any widths, encodings as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, Stacked
from dsv41c.kernels.reference.fake_quant import fake_fp4_e4m3, fake_fp8
from dsv41c.kernels.reference.rows import pack
from dsv41c.kernels.step import Step


@dataclass(frozen=True)
class Widths:
    dim: int = 64
    streams: int = 4
    heads: int = 4
    head_dim: int = 32
    rope_dim: int = 8
    low: int = 96
    groups: int = 2
    rank: int = 32
    window: int = 16
    experts: int = 6
    active: int = 2
    inter: int = 32
    vocab: int = 24


FLASH = Widths(5120, 4, 64, 512, 64, 1280, 8, 1024, 128, 16, 6, 2304, 4096)


class Maker:
    """Random tensors of one seed, on a device."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self.random = torch.Generator(device).manual_seed(seed)
        self.device = device

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        return (torch.randn(shape, generator=self.random, device=self.device) * scale).to(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(low, high, shape, generator=self.random, device=self.device).to(dtype)

    def fp8(self, rows: int, columns: int) -> Packed:
        """Codes of any E4M3 number, scales such that a row of normal numbers comes to about 1."""
        codes = self.integers(0, 256, rows, columns, dtype=torch.uint8)
        codes = torch.where((codes & 127) == 127, codes & 119, codes)
        exponent = round(-torch.log2(torch.tensor(columns**0.5 * 120.0)).item())
        grid = (-(-rows // 32), -(-columns // 32))
        scale = self.integers(127 + exponent - 1, 127 + exponent + 2, *grid, dtype=torch.uint8)
        return Packed(codes, scale, "fp8_32x32")

    def fp4(self, experts: int, rows: int, columns: int) -> Stacked:
        codes = self.integers(0, 256, experts, rows, columns // 2, dtype=torch.uint8)
        exponent = round(-torch.log2(torch.tensor(columns**0.5 * 2.5)).item())
        scale = self.integers(127 + exponent - 1, 127 + exponent + 2, experts, rows, columns // 32, dtype=torch.uint8)
        return Stacked(codes, scale, "fp4_32")


def step_of(positions: list[int], device: str = "cpu", *, padding: int = 0, spare: int = 9) -> Step:
    """Sessions at some positions, in slots counted down from the end; padding rows on the spare slot."""
    slots = [spare - 1 - index for index in range(len(positions))] + [spare] * padding
    return Step(
        torch.tensor(slots, device=device), torch.tensor(positions + [0] * padding, device=device), max(positions) + 1
    )


def input_case(make: Maker, w: Widths, batch: int, kv_cache: str = "reference") -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `attention_input` behind the step."""
    mixes, flat = (2 + w.streams) * w.streams, w.streams * w.dim
    given: list[Any] = [
        make.normal(batch, 1, w.streams, w.dim, dtype=torch.bfloat16),
        torch.softmax(make.normal(batch, 1, w.streams), -1),
        make.normal(mixes, flat, scale=flat**-0.5),
        make.normal(3),
        make.normal(mixes),
        1 + make.normal(w.dim, scale=0.1),
        10000.0 ** -torch.arange(0, 1, 2 / w.rope_dim, device=make.device),
        make.fp8(w.low, w.dim),
        1 + make.normal(w.low, scale=0.1),
        make.fp8(w.heads * w.head_dim, w.low),
        10000.0 ** -torch.arange(0, 1, 2 / w.rope_dim, device=make.device),
        make.fp8(w.head_dim, w.dim),
        1 + make.normal(w.head_dim, scale=0.1),
    ]
    attrs = {
        "mix_iterations": 20,
        "mix_eps": 1e-6,
        "mix_norm_eps": 1e-20,
        "norm_eps": 1e-20,
        "query_heads": w.heads,
        "query_rope_dim": w.rope_dim,
        "query_eps": 1e-20,
        "query_activation_quant": "none",
        "window_rows_rope_dim": w.rope_dim,
        "window_rows_eps": 1e-20,
        "window_rows_activation_quant": "none",
        "window_rows_kv_cache": kv_cache,
    }
    return given, attrs


def output_case(
    make: Maker, w: Widths, batch: int, *, ratio: int, selected: int, capacity: int, packed: bool, slots: int = 10
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `attention_output` behind the step; about a third of the selection is -1."""
    rows = make.normal(slots, w.window, w.head_dim, dtype=torch.bfloat16)
    groups = make.normal(slots, capacity, w.head_dim, dtype=torch.bfloat16)
    rows, groups, own = fake_fp8(rows), fake_fp4_e4m3(groups), make.normal(batch, 1, w.head_dim, dtype=torch.bfloat16)
    given: list[Any] = [
        make.normal(batch, 1, w.heads, w.head_dim, dtype=torch.bfloat16),
        pack("window_kv", rows) if packed else rows,
        fake_fp8(own),
        make.normal(batch, 1, w.streams, w.dim, dtype=torch.bfloat16),
        make.normal(batch, 1, w.streams).sigmoid() * 2,
        torch.softmax(make.normal(batch, 1, w.streams, w.streams), -1),
        10000.0 ** -torch.arange(0, 1, 2 / w.rope_dim, device=make.device),
        make.normal(w.heads),
        make.fp8(w.groups * w.rank, w.heads * w.head_dim // w.groups),
        make.fp8(w.dim, w.groups * w.rank),
    ]
    named: dict[str, Any] = {
        "attend_window": w.window,
        "attend_ratio": ratio,
        "attend_rope_dim": w.rope_dim,
        "window_store_window": w.window,
        "output_groups": w.groups,
        "output_activation_quant": "none",
    }
    if ratio:
        seeds = [torch.Generator().manual_seed(number) for number in range(batch)]
        picked = torch.stack([torch.randperm(capacity, generator=seed)[:selected] for seed in seeds]).to(make.device)
        picked = torch.where(make.integers(0, 3, batch, selected) == 0, -1, picked)[:, None]
        named |= {"compress_kv": pack("compress_kv", groups) if packed else groups, "topk": picked}
    return given, named


def ffn_case(make: Maker, w: Widths, batch: int, *, limit: float = 2.0) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `ffn` behind the step."""
    given, attrs = input_case(make, w, batch)
    given = [
        *given[:6],
        make.normal(w.experts, w.dim, scale=w.dim**-0.5, dtype=torch.bfloat16),
        make.normal(w.experts, scale=0.1),
        make.fp4(w.experts, w.inter, w.dim),
        make.fp4(w.experts, w.dim, w.inter),
        make.fp4(w.experts, w.inter, w.dim),
        make.fp8(w.inter, w.dim),
        make.fp8(w.dim, w.inter),
        make.fp8(w.inter, w.dim),
    ]
    return given, {name: value for name, value in attrs.items() if name.startswith(("mix", "norm"))} | {
        "route_active": w.active,
        "route_score_func": "sqrtsoftplus",
        "route_gate_temp": 1.0,
        "route_route_scale": 1.5,
        "experts_limit": limit,
        "experts_activation_quant": "none",
        "shared_expert_limit": limit,
        "shared_expert_activation_quant": "none",
    }


def logits_case(make: Maker, w: Widths, batch: int) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `logits` behind the step."""
    given, _ = input_case(make, w, batch)
    head = make.normal(w.vocab, w.dim, dtype=torch.bfloat16)
    return [*given[:2], given[5], head], {"norm_eps": 1e-20}
