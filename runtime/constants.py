"""Tensors that the runtime makes itself: rope frequencies, hash constants of the n-grams, and the token map."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import torch
from torch import Tensor

from dsv41c.kernels.reference.rope import compress_frequencies, window_frequencies
from dsv41c.runtime.manifest import ConstantEntry, EngramEntry, Manifest
from dsv41c.runtime.text import load_tokenizer
from dsv41c.runtime.token_map import token_map


def make_constants(manifest: Manifest, checkpoint: Path, wanted: Container[str] | None = None) -> dict[str, Tensor]:
    """Every constant of a plan by id; with `wanted`, only these.

    Reads the checkpoint's tokenizer only where a token map is among them.

    Raises `UserFault` where the tokenizer is missing, cannot be read or is not the plan's.
    """
    made = [entry for entry in manifest.constants if wanted is None or entry.id in wanted]
    return {entry.id: _constant(entry, manifest, checkpoint) for entry in made}


def _constant(entry: ConstantEntry, manifest: Manifest, checkpoint: Path) -> Tensor:
    if entry.kind == "rope_frequencies":
        return _frequencies(entry)
    assert manifest.engram is not None, "a plan with hash constants has an engram section"
    if entry.kind == "token_map":
        return _token_map(manifest, manifest.engram, checkpoint)
    part = entry.kind.removeprefix("engram_")
    return torch.tensor([getattr(layer, part) for layer in manifest.engram.layers], dtype=torch.int64)


def _frequencies(entry: ConstantEntry) -> Tensor:
    """f32 [rope_dim / 2]; with `factor` among the attributes, YaRN's."""
    attrs = entry.attrs
    rope_dim, theta = int(attrs["rope_dim"]), float(attrs["theta"])
    if "factor" not in attrs:
        return window_frequencies(rope_dim, theta)
    return compress_frequencies(
        rope_dim,
        theta,
        float(attrs["factor"]),
        int(attrs["original_seq_len"]),
        float(attrs["beta_fast"]),
        float(attrs["beta_slow"]),
    )


def _token_map(manifest: Manifest, engram: EngramEntry, checkpoint: Path) -> Tensor:
    """int64 [vocab_size]."""
    tokenizer = load_tokenizer(checkpoint, manifest.model.vocab_size, text=False)
    return torch.as_tensor(
        token_map(tokenizer, manifest.model.vocab_size, engram.compressed_vocab_size), dtype=torch.int64
    )
