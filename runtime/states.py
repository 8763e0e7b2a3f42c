"""What a run leaves behind, as named tensors: a row for each position fed, named as in the golden files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.state import Pools

# Value ids and the keys they are written under; the layer number goes in front as `L4.`.
_STEP_KEYS: Mapping[str, str] = {
    "streams@L{}.ffn": "streams",
    "streams@L{}.engram": "streams_after_engram",
    "pre@L{}.ffn": "pre",
    "sublayer_out@L{}.attn": "attn_out",
    "engram_gate@L{}": "engram_gate",
    "topk@L{}": "topk",
    "candidates@L{}": "candidates",
    "expert_ids@L{}": "experts",
    "engram_ids": "engram_ids",
    "normed@final": "final_hidden",
}
_SESSION_KEYS = ("compress_kv", "index_k")


def state_keys(manifest: Manifest) -> dict[str, str]:
    """The step values that are written, by id, with their keys (`L4.topk`)."""
    return {value.id: key for value in manifest.values if (key := _key(value.id)) is not None}


def collect(manifest: Manifest, trace: Trace, pools: Pools, slot: int, length: int) -> dict[str, Tensor]:
    """Every state of one session of `length` tokens, all fed while `trace` recorded: floats f32, integers int32.

    `topk` [T, index_topk], ascending, -1 = none; `candidates` [T, length // r] by group, ANDed with visibility;
    `compress_kv` and `index_k` [length // r, ...], the rows of complete groups. All on the host.
    """
    states = {}
    for value, key in state_keys(manifest).items():
        parts = [recording.values[value][0].to("cpu") for recording in trace.steps if value in recording.values]
        if parts:
            states[key] = _plain(_shaper(manifest, value, length)(parts))
    ratios = _ratios(manifest)
    for entry in manifest.values:
        match = re.fullmatch(rf"({'|'.join(_SESSION_KEYS)})@L(\d+)", entry.id)
        if match is not None and entry.scope == "session":
            rows = pools.rows(entry.id, slot)[: length // ratios[entry.id]]
            states[f"L{match[2]}.{match[1]}"] = _plain(rows).to("cpu", copy=True)
    return states


def _key(value: str) -> str | None:
    """`L4.streams` for `streams@L4.ffn`; None for a value that is not written."""
    match = re.search(r"@L(\d+)", value)
    name = _STEP_KEYS.get(value if match is None else value.replace(match[0], "@L{}", 1))
    return name if name is None or match is None else f"L{match[1]}.{name}"


def _ratios(manifest: Manifest) -> dict[str, int]:
    """The compress ratio of each value that an op with a ratio writes."""
    return {value: int(op.attrs["ratio"]) for op in manifest.ops if "ratio" in op.attrs for value in op.writes.values()}


def _plain(tensor: Tensor) -> Tensor:
    """f32 for floats, int32 for integers."""
    if tensor.is_floating_point():
        return tensor.float()
    return tensor if tensor.dtype == torch.bool else tensor.to(torch.int32)


def _shaper(manifest: Manifest, value: str, length: int) -> Callable[[Sequence[Tensor]], Tensor]:
    """How the steps' parts [T, ...] of a value become one tensor; selections grow with the context."""
    if value.startswith("topk@"):
        return lambda parts: torch.cat([_padded(part, manifest.model.index_topk, -1) for part in parts])
    if value.startswith("candidates@"):
        ratio, block = _ratios(manifest)[value], manifest.model.candidate_block_size
        return lambda parts: _groups(parts, ratio, block, length // ratio)
    return lambda parts: torch.cat(list(parts))


def _padded(part: Tensor, width: int, filler: int) -> Tensor:
    return torch.nn.functional.pad(part, (0, width - part.shape[-1]), value=filler)


def _groups(parts: Sequence[Tensor], ratio: int, block: int, total: int) -> Tensor:
    """Candidate blocks as groups, bool [T, total], only those visible to each position."""
    wide = [_padded(part.repeat_interleave(block, dim=-1)[:, :total], total, 0) for part in parts]
    kept = torch.cat(wide)
    visible = (torch.arange(kept.shape[0]) + 1) // ratio
    return kept & (torch.arange(total) < visible[:, None])
