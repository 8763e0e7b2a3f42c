"""What a shard binds: parts of the mapped files, with the scales of their blocks, and the rest left alone."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.catalog import WEIGHT_ROLES
from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.runtime.manifest import ShardEntry
from dsv41c.runtime.shards import of_shard
from dsv41c.runtime.weights.bind import bind

COUNT = 2
WO_B = "layers.0.attn.wo_b.weight"


def split(manifest, *, stored=False):
    """A manifest of two shards, with matrices as stored. The tiny inner width, 96, has three blocks: it stays whole."""
    weights = []
    for weight in manifest.weights:
        axis = WEIGHT_ROLES[weight.role].split
        whole = axis is None or weight.role.startswith("shared")
        update = {} if whole else {"shard": ShardEntry(axis=axis, count=COUNT)}
        if stored and weight.role in ("wq_b", "wo_a", "wo_b"):
            update["dtype"] = "stored"
        weights.append(weight.model_copy(update=update))
    return manifest.model_copy(update={"weights": weights})


def whole_and_parts(manifest, folder):
    return bind(manifest, folder), [bind(split(manifest), folder, shard) for shard in range(COUNT)]


def test_parts_make_up_the_whole(plans, tiny_folder):
    manifest = plans.tiny(tiny_folder)
    whole, parts = whole_and_parts(manifest, tiny_folder)
    seen = set()
    for entry in split(manifest).weights:
        if entry.shard is None:
            continue
        seen.add(entry.role)
        given = [part[entry.id] for part in parts]
        if entry.shard.axis == "experts":
            joined = [dense(item, torch.float32) for part in given for item in part]
            assert len(given[0]) == of_shard(entry).count == entry.count // COUNT
            assert all(map(torch.equal, joined, (dense(item, torch.float32) for item in whole[entry.id])))
        else:
            assert [list(part.shape) for part in given] == [of_shard(entry).shape] * COUNT
            axis = 0 if entry.shard.axis == "rows" else -1
            assert torch.equal(torch.cat(given, dim=axis), whole[entry.id])
    assert seen == {"head", "wq_b", "attn_sink", "wo_a", "wo_b", "experts_w1", "experts_w2", "experts_w3"}


def test_packed_parts_have_their_own_scales(plans, tiny_folder):
    manifest = plans.tiny(tiny_folder, "bf16")
    whole = bind(manifest, tiny_folder)
    parts = [bind(split(manifest, stored=True), tiny_folder, shard) for shard in range(COUNT)]
    for role, axis in (("wq_b", 0), ("wo_a", 0), ("wo_b", 1)):
        items = [part[f"layers.3.{role}"] for part in parts]
        assert all(isinstance(item, Packed) for item in items)
        assert torch.equal(
            torch.cat([dense(item, torch.bfloat16) for item in items], dim=axis), whole[f"layers.3.{role}"]
        )
        for codes in (item.codes for item in items):  # views: nothing was copied
            assert codes.untyped_storage().nbytes() == COUNT * codes.numel()


def test_experts_of_others_are_not_looked_at(plans, tiny_folder, changed):
    """A NaN in expert 5 is for the shard that has it."""
    name = "layers.2.ffn.experts.5.w1.scale"
    manifest = split(plans.tiny(tiny_folder))
    scales = {k: v for f in sorted(tiny_folder.glob("*.safetensors")) for k, v in load_file(f).items() if k == name}
    shape = list(scales[name].shape)
    path = changed({name: ("F8_E8M0", shape, b"\xff" * scales[name].numel())})
    bind(manifest, path, 0)
    with pytest.raises(UserFault) as caught:
        bind(manifest, path, 1)
    assert [finding.code for finding in caught.value.diagnostics] == ["DSV730"]


def test_a_fault_has_the_indices_of_the_whole_tensor(plans, tiny_folder, tiny_data, changed):
    dtype, shape, data = tiny_data[WO_B]
    place = 7 * shape[1] + shape[1] - 1  # the last column, which the second shard has
    path = changed({WO_B: (dtype, shape, data[:place] + b"\x7f" + data[place + 1 :])})
    manifest = split(plans.tiny(tiny_folder))
    bind(manifest, path, 0)
    with pytest.raises(UserFault) as caught:
        bind(manifest, path, 1)
    (finding,) = caught.value.diagnostics
    assert finding.code == "DSV730" and f"element [7, {shape[1] - 1}]" in finding.message
