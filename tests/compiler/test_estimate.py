"""`estimate`: figures that are known, verdicts, and the largest that fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsv41c.compiler import compile_spec, load
from dsv41c.compiler.estimate import PROCESS_BYTES, Estimate, Place, Sizes, estimate, fit
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.memory import allocated, global_kv_bytes, kept_bytes, sized

Run = Callable[..., Any]  # of conftest.py
FLASH = "deepseek-v4.1-flash"
GIB = 1 << 30
GB = 10**9
FOUR = ('placement.devices=["cuda:0", "cuda:1", "cuda:2", "cuda:3"]', "placement.layer_ends=[10, 20, 30, 40]")


@cache
def manifest(spec: str, *sets: str, target: str | None = "cuda") -> Manifest:
    return compile_spec(load(spec, target=target, sets=sets)).manifest


def items(place: Place) -> dict[str, int]:
    return {item.name: item.bytes for item in place.items}


# --- figures ----------------------------------------------------------------------------------------------------------


def test_global_kv_of_flash() -> None:
    """2.5 rows of 356 bytes a token: 0.87 GiB for the longest context, whatever the stages."""
    for sets in ((), FOUR):
        found = manifest(FLASH, "numerics.kv_cache=packed", "runtime.max_sessions=1", *sets)
        assert global_kv_bytes(found) == 890
        places = estimate(sized(found, context=1 << 20)).places
        held = sum(items(place).get("global KV", 0) for place in places) / 2  # a session's, and the spare one's
        assert held == 890 << 20
        assert round(held / GIB, 2) == 0.87


@pytest.mark.parametrize("storage", ["device", "host", "mapped", "disk"])
def test_engram_of_flash_by_storage(storage: str) -> None:
    """Two tables of 94.4 GiB: on the devices of their layers, on the host, in the page cache, or nowhere."""
    found = estimate(manifest(FLASH, f"engram.storage={storage}", *FOUR))
    *devices, host = found.places
    tables = [items(place).get("engram tables", 0) for place in devices]
    on_host = items(host).get("engram tables", 0)
    whole = 384006168 * 264 + 384016682 * 264
    assert round(whole / GIB, 1) == 188.8
    assert tables == ([384006168 * 264, 384016682 * 264, 0, 0] if storage == "device" else [0] * 4)
    assert on_host == (whole if storage == "host" else 0)
    assert [item.bytes for item in found.uncounted] == ([whole] if storage in ("mapped", "disk") else [])


@pytest.mark.parametrize(
    ("sets", "read_by_host"),
    [
        (("engram.storage=device",), False),
        (("engram.storage=host",), False),
        (("engram.storage=host", "weights.engram=bf16"), True),
        (("engram.storage=host", "numerics.compute=f32"), True),
        (("engram.storage=mapped",), True),
    ],
)
def test_a_buffer_for_rows_is_counted_where_the_host_reads_them(sets: tuple[str, ...], read_by_host: bool) -> None:
    found = manifest("toy", *sets)
    inputs = items(estimate(found).places[0])["step inputs"]
    largest = found.runtime.decode_buckets[-1]
    assert inputs == largest * (3 * 8 + (2 * 6 * 32 * 4 if read_by_host else 0))


def test_a_run_that_was_measured() -> None:
    """Flash on one H200, 128 of 384 experts stored behind the whole gate, a million rows of each table on the device.

    What torch's allocator had given out once weights and state were there, and at most until a step was captured.
    """
    sets = ("max_context=131072", "max_sessions=8", "prefill_chunk=8192", "decode_buckets=[1, 8]")
    found = manifest(FLASH, *(f"runtime.{text}" for text in sets))
    (place, _) = estimate(found).places
    experts = [weight for weight in found.weights if "{expert}" in weight.name]
    left_out = sum(kept_bytes(weight) - kept_bytes(weight, 128) for weight in experts)
    there = items(place)
    shorter = 2 * (1 << 20) * 264 - left_out
    steps = there["work space"] + there["graphs"] + there["step inputs"]
    held = place.needed - steps + shorter
    assert held == pytest.approx(110_656_819_712, rel=0.001)
    assert held + there["graphs"] + there["step inputs"] == pytest.approx(110_775_338_496, rel=0.001)
    assert abs(place.needed + shorter - 110_775_338_496) < 0.03 * 110_775_338_496  # with a chunk of 8192 tokens as well


def test_rounding_of_the_allocator() -> None:
    mib = 1 << 20
    assert [allocated(count) for count in (1, 512, 513)] == [512, 512, 1024]
    assert allocated(10 * mib - 1) == 10 * mib
    assert allocated(10 * mib + 512) == 10 * mib + 512
    assert allocated(11 * mib) == 12 * mib
    counts = [allocated(count) for count in range(9 * mib, 15 * mib, 65536)]
    assert counts == sorted(counts)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_four_devices_and_their_host() -> None:
    """Four of 96 GB with 587 GiB of host memory hold Flash at any context, with tables on the host, not on devices."""
    sizes = Sizes(96 * GB, 587 * GIB)
    packed = ("numerics.kv_cache=packed", "runtime.max_sessions=1", *FOUR)
    on_host = manifest(FLASH, "engram.storage=host", *packed)
    assert estimate(sized(on_host, context=1 << 20), sizes).fits is True
    assert estimate(on_host, Sizes(96 * GB, 180 * GIB)).fits is False
    on_device = estimate(manifest(FLASH, "engram.storage=device", *packed), sizes)
    assert [place.fits for place in on_device.places] == [False, False, True, True, True]
    assert on_device.places[0].largest.name == "engram tables"


@pytest.mark.parametrize("storage", ["host", "disk"])
def test_unified_memory_has_no_other_side(storage: str) -> None:
    """Of 128 GiB that device and host share, no storage of tables makes room for the weights."""
    found = estimate(manifest(FLASH, f"engram.storage={storage}"), Sizes(host=128 * GIB, unified=True))
    (place,) = found.places
    assert place.fits is False and place.largest.name == "experts"
    apart = estimate(manifest(FLASH, f"engram.storage={storage}"), Sizes(128 * GIB, 128 * GIB))
    assert place.needed == sum(each.needed for each in apart.places)


def test_cpus_are_on_the_host() -> None:
    (place,) = estimate(manifest("toy", target=None), Sizes(host=GIB)).places
    assert place.fits is True and place.available == GIB


def test_shards_hold_their_parts() -> None:
    whole, parts = (manifest("toy", f"placement.tensor_parallel={count}") for count in (1, 2))
    one, two = estimate(whole), estimate(parts)
    assert items(two.places[0])["experts"] * 2 == items(one.places[0])["experts"]
    assert items(two.places[0])["global KV"] == items(one.places[0])["global KV"]
    assert estimate(parts, Sizes(unified=True)).places[0].needed == 2 * two.places[0].needed + two.places[1].needed


STAGED = ('placement.devices=["cuda:0", "cuda:1", "cuda:0"]', "placement.layer_ends=[2, 4, 8]")


@pytest.mark.parametrize("stages", [(), STAGED])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_host_is_counted_for_every_process(shards: int, stages: tuple[str, ...]) -> None:
    """One for each device, or each of its shards. Every shard has rows of its own."""
    host = estimate(manifest("toy", "engram.storage=disk", *stages, f"placement.tensor_parallel={shards}")).places[-1]
    count = shards * (2 if stages else 1)
    process = host.items[-1]
    assert process.bytes == count * PROCESS_BYTES and process.what.startswith(f"{count} x Python")
    assert process.what.endswith("CPUs" if count == 1 else "each shard of a device" if shards > 1 else "each device")
    one = items(estimate(manifest("toy", "engram.storage=disk")).places[-1])
    assert items(host)["row cache"] == shards * one["row cache"]
    pinned = estimate(manifest("toy", "engram.storage=host", *stages, f"placement.tensor_parallel={shards}")).places[-1]
    assert items(pinned)["engram tables"] == shards * (15246 + 20790)


# --- the largest that fits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["context", "sessions"])
@pytest.mark.parametrize("stages", [(), ('placement.devices=["cuda:0", "cuda:1"]', "placement.layer_ends=[4, 8]")])
def test_fit_is_the_inverse(axis: Any, stages: tuple[str, ...]) -> None:
    found = manifest("toy", "runtime.max_sessions=50", *stages)
    limit = 130 if axis == "context" else 50
    needed = [_needed(found, axis, number) for number in range(1, limit + 1)]
    assert needed == sorted(needed)
    for number in (1, 7, 33, limit):
        there = needed[number - 1]
        exact, at = fit(found, axis, limit, Sizes(there))
        assert exact.largest == max(count for count in range(1, limit + 1) if needed[count - 1] <= there)
        assert at.fits is True and max(place.needed for place in at.places[:-1]) <= there
    nothing, at = fit(found, axis, limit, Sizes(needed[0] - 1))
    assert nothing.largest is None and at.fits is False


def _needed(found: Manifest, axis: str, number: int) -> int:
    *devices, _ = estimate(sized(found, **{axis: number})).places
    return max(place.needed for place in devices)


# --- the command ------------------------------------------------------------------------------------------------------


def told(run: Run, *argv: str) -> tuple[int, dict[str, Any]]:
    ran = run("estimate", *argv, "--json")
    return ran.code, json.loads(ran.out)


def test_json(run: Run) -> None:
    code, data = told(run, "toy", "--target", "cuda", "--device-memory", "1MB", "--host-memory", "1 GiB")
    assert code == 1
    keys = "context decode_buckets engram family findings fit fits format global_kv_bytes_per_token name places"
    assert " ".join(sorted(data)) == f"{keys} prefill_chunk processes sessions uncounted"
    device, host = data["places"]
    assert " ".join(sorted(device)) == "available fits items largest margin name needed"
    assert device["margin"] == 10**6 - device["needed"] == 10**6 - sum(item["bytes"] for item in device["items"])
    assert (device["fits"], host["fits"], data["fits"]) == (False, True, False)
    assert [finding["code"] for finding in data["findings"]] == ["DSV830"]
    assert data["engram"] == {"storage": "mapped", "tables": {"1": 15246, "4": 20790}}
    code, data = told(run, "toy", "--target", "cuda")
    assert (code, data["fits"], data["findings"], data["places"][0]["margin"]) == (0, None, [], None)
    assert (data["processes"], told(run, "toy", "--set", "placement.tensor_parallel=2")[1]["processes"]) == (1, 2)


def test_text(run: Run) -> None:
    ran = run("estimate", "toy")
    assert ran.code == 0 and ran.err == ""
    assert "not judged; most of it process" in ran.out and "not counted\n  engram tables" in ran.out
    small = run("estimate", "toy", "--host-memory", "8MB")
    assert small.code == 1
    assert "does not fit into 7.6 MiB" in small.out and "error[DSV830]" in small.err


def test_asked_sizes_are_those_of_a_spec(run: Run) -> None:
    asked = told(run, "toy", "--target", "cuda", "--context", "256", "--sessions", "3")
    written = told(
        run, "toy", "--target", "cuda", "--set", "runtime.max_context=256", "--set", "runtime.max_sessions=3"
    )
    assert asked == written
    assert asked[1]["decode_buckets"] == [1, 2, 3]


def test_fit_of_the_command_is_what_fits(run: Run) -> None:
    spec = ("toy", "--target", "cuda")
    room = told(run, *spec, "--context", "300")[1]["places"][0]["needed"]
    sizes = (*spec[1:], "--device-memory", str(room))
    for axis in ("context", "sessions"):
        code, data = told(run, "toy", "--fit", axis, *sizes)
        largest = data["fit"]["largest"]
        assert code == 0 and 1 < largest < data["fit"]["limit"] and data[axis] == largest
        assert told(run, "toy", f"--{axis}", str(largest), *sizes)[0] == 0
        assert told(run, "toy", f"--{axis}", str(largest + 1), *sizes)[0] == 1
    none = run("estimate", "toy", "--fit", "context", "--target", "cuda", "--device-memory", "1MB")
    assert none.code == 1 and "no context fits, not even 1" in none.out


def test_what_a_spec_gets_wrong_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("extends: toy\nlayers: {kv_source_layers: [2]}\n")
    ran = run("estimate", "broken.yaml")
    assert ran.code == 1 and ran.out == "" and "DSV403" in ran.err


def test_nothing_is_opened(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """No checkpoint, no torch: the estimate of a model is there in any environment."""
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    assert run("estimate", FLASH, "--target", "rocm8").code == 0


def test_estimates_are_data() -> None:
    first, second = (estimate(manifest("toy", target=None)) for _ in range(2))
    assert isinstance(first, Estimate) and first == second
