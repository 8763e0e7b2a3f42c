"""What a shard binds: parts of the mapped files, with the scales of their blocks, and the rest left alone."""

from __future__ import annotations

import pytest
import torch

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.catalog import WEIGHT_ROLES
from dsv41c.kernels.reference.encodings import Packed, dense, encode_fp8_32x32
from dsv41c.runtime.manifest import ShardEntry
from dsv41c.runtime.shards import of_shard
from dsv41c.runtime.weights.bind import bind

# The tiny inner width, 96, has three blocks; all other widths that are split have two.
WIDTHS, INNER = 2, 3
WO_B = "layers.0.attn.wo_b.weight"


def split(manifest, count=WIDTHS, *, stored=False):
    """A manifest of two shards that have all but inner widths in parts, or of three that have those, as stored."""
    weights = []
    for weight in manifest.weights:
        axis = WEIGHT_ROLES[weight.role].split
        inner = weight.role.startswith(("shared", "experts"))
        update = {} if axis is None or inner != (count == INNER) else {"shard": ShardEntry(axis=axis, count=count)}
        if stored and weight.role in ("wq_b", "wo_a", "wo_b"):
            update["dtype"] = "stored"
        weights.append(weight.model_copy(update=update))
    return manifest.model_copy(update={"weights": weights})


def axis_of(entry):
    return 0 if entry.shard.axis == "rows" else -1


@pytest.mark.parametrize("count", [WIDTHS, INNER])
def test_parts_make_up_the_whole(count, plans, tiny_folder):
    manifest = plans.tiny(tiny_folder)
    whole, parts = bind(manifest, tiny_folder), [bind(split(manifest, count), tiny_folder, n) for n in range(count)]
    seen = set()
    for entry in split(manifest, count).weights:
        if entry.shard is None:
            continue
        seen.add(entry.role)
        given = [part[entry.id] for part in parts]
        # Of experts item by item.
        pairs = (
            [(given, whole[entry.id])]
            if entry.count == 1
            else zip(zip(*given, strict=True), whole[entry.id], strict=True)
        )
        for items, item in pairs:
            joined = [dense(part, torch.float32) for part in items]
            assert [list(part.shape) for part in joined] == [of_shard(entry).shape] * count
            assert torch.equal(torch.cat(joined, dim=axis_of(entry)), dense(item, torch.float32))
    inner = {f"{kind}_{name}" for kind in ("experts", "shared") for name in ("w1", "w2", "w3")}
    assert seen == (inner if count == INNER else {"head", "wq_b", "attn_sink", "wo_a", "wo_b"})


def test_packed_parts_have_their_own_scales(plans, tiny_folder):
    manifest = plans.tiny(tiny_folder, "bf16")
    whole = bind(manifest, tiny_folder)
    parts = [bind(split(manifest, stored=True), tiny_folder, shard) for shard in range(WIDTHS)]
    for role, axis in (("wq_b", 0), ("wo_a", 0), ("wo_b", 1)):
        items = [part[f"layers.3.{role}"] for part in parts]
        assert all(isinstance(item, Packed) for item in items)
        assert torch.equal(
            torch.cat([dense(item, torch.bfloat16) for item in items], dim=axis), whole[f"layers.3.{role}"]
        )
        for codes in (item.codes for item in items):  # views: nothing was copied
            assert codes.untyped_storage().nbytes() == WIDTHS * codes.numel()


def read(tiny_data, name):
    """The bytes of a tensor as rows, as the file has them."""
    _, shape, data = tiny_data[name]
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(shape[0], -1)


@pytest.mark.parametrize(("name", "axis"), [("w1", 0), ("w2", 1), ("w3", 0)])
def test_experts_are_cut_byte_by_byte(name, axis, plans, tiny_folder, tiny_data):
    """Of every expert the codes, two a byte, and the scales of these columns or rows: slices of what the file has."""
    manifest = plans.tiny(tiny_folder)
    for shard in range(INNER):
        bound = bind(split(manifest, INNER), tiny_folder, shard)[f"layers.2.experts_{name}"]
        for number, item in enumerate(bound):
            stem = f"layers.2.ffn.experts.{number}.{name}"
            for found, whole in ((item.codes, f"{stem}.weight"), (item.scale, f"{stem}.scale")):
                assert torch.equal(found, read(tiny_data, whole).chunk(INNER, dim=axis)[shard])
                assert found.untyped_storage().nbytes() == INNER * found.numel()  # a view: nothing was copied


def test_plain_and_fp8_experts_are_cut_as_well(plans, tiny_folder, changed):
    """However an expert is stored, these columns of it are the shard's."""
    manifest = plans.tiny(tiny_folder)
    weights = [w.model_copy(update={"accepted": ["fp8_32x32", "bf16", "fp4_32"]}) for w in manifest.weights]
    whole = [dense(item, torch.float32) for item in bind(manifest, tiny_folder)["layers.2.experts_w2"]]
    tensors = {}
    for number, values in enumerate(whole):
        stem = f"layers.2.ffn.experts.{number}.w2"
        fp8 = encode_fp8_32x32(values)
        for name, data in ((f"{stem}.weight", fp8.codes.view(torch.uint8)), (f"{stem}.scale", fp8.scale)):
            kind = "F8_E8M0" if name.endswith("scale") else "F8_E4M3"
            tensors[name] = (kind, list(data.shape), data.numpy().tobytes())
        if number % 2:
            plain = values.bfloat16().view(torch.uint8).numpy().tobytes()
            tensors |= {f"{stem}.weight": ("BF16", list(values.shape), plain), f"{stem}.scale": None}
    path = changed(tensors)
    whole = bind(manifest.model_copy(update={"weights": weights}), path)["layers.2.experts_w2"]
    assert {getattr(item, "encoding", "bf16") for item in whole} == {"fp8_32x32", "bf16"}
    for shard in range(INNER):
        parts = bind(split(manifest.model_copy(update={"weights": weights}), INNER), path, shard)["layers.2.experts_w2"]
        for item, part in zip(whole, parts, strict=True):
            assert torch.equal(dense(part, torch.float32), dense(item, torch.float32).chunk(INNER, dim=1)[shard])


@pytest.mark.parametrize("shard", range(INNER))
def test_parts_of_others_are_not_looked_at(shard, plans, tiny_folder, tiny_data, changed):
    """A NaN in a column of scales is for the shard that has it, which tells of the whole tensor."""
    name = "layers.2.ffn.experts.5.w2.scale"
    dtype, shape, data = tiny_data[name]
    place = 7 * shape[1] + shard
    path = changed({name: (dtype, shape, data[:place] + b"\xff" + data[place + 1 :])})
    manifest = split(plans.tiny(tiny_folder), INNER)
    for other in set(range(INNER)) - {shard}:
        bind(manifest, path, other)
    with pytest.raises(UserFault) as caught:
        bind(manifest, path, shard)
    (finding,) = caught.value.diagnostics
    assert finding.code == "DSV730" and f"`{name}` element [7, {shard}]" in finding.message


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
