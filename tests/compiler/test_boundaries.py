"""What crosses stage boundaries, as `inspect --boundaries` tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dsv41c.compiler import compile_spec, load
from dsv41c.compiler.inspect.boundaries import data as boundaries
from dsv41c.runtime.manifest import Manifest

Run = Callable[..., Any]  # of conftest.py
FLASH = "deepseek-v4.1-flash"


def split(spec: str, *ends: int, devices: str | None = None) -> Manifest:
    named = devices or "[" + ", ".join(f'"cuda:{number}"' for number in range(len(ends))) + "]"
    sets = (f"placement.devices={named}", f"placement.layer_ends={list(ends)}")
    return compile_spec(load(spec, sets=sets)).manifest


def added(manifest: Manifest) -> dict[int, dict[str, list[int]]]:
    """By the layer before which a cut is: what it carries beside streams and pre-mix, with the layers that read it."""
    found = {}
    for boundary in boundaries(manifest):
        (streams, pre, *rest) = boundary["values"]
        assert (streams["kind"], pre["kind"]) == ("streams", "pre")
        assert streams["layers"] == pre["layers"] == [boundary["layer"]]
        found[boundary["layer"]] = {value["value"]: value["layers"] for value in rest}
    return found


def test_flash_in_two_equal_parts() -> None:
    assert added(split(FLASH, 20, 40)) == {20: {}}


def test_flash_cut_behind_its_last_source() -> None:
    assert added(split(FLASH, 22, 40)) == {
        22: {
            "compress_kv@L20": list(range(22, 40)),
            "index_k@L20": [24, 28, 32, 36],
            "topk@L20": [22, 23],
            "candidates@L20": [24, 28, 32, 36],
        }
    }


def test_flash_in_four_parts() -> None:
    manifest = split(FLASH, 10, 20, 30, 40)
    assert added(manifest) == {
        10: {"ids": [], "compress_kv@L8": [10, 11, 12, 13], "topk@L8": [10, 11, 12, 13]},
        20: {},
        30: {
            "compress_kv@L20": list(range(30, 40)),
            "index_k@L20": [32, 36],
            "topk@L28": [30, 31],
            "candidates@L20": [32, 36],
        },
    }
    ids = boundaries(manifest)[0]["values"][2]
    assert (ids["producer"], ids["ops"]) == (None, ["stages.1.engram_ids"])  # the hash of the Engram layer at 14


def test_flash_in_three_parts() -> None:
    assert "topk@L24" in added(split(FLASH, 13, 26, 40))[26]


def test_who_makes_it_and_how_it_travels() -> None:
    manifest = split(FLASH, 22, 40)
    (boundary,) = boundaries(manifest)
    values = {value["value"]: value for value in boundary["values"]}
    assert {name: (value["producer"], value["how"]) for name, value in values.items()} == {
        "streams@L21.ffn": ("layers.21.ffn.expand", "chunk"),
        "pre@L21.ffn": ("layers.21.ffn.mix", "chunk"),
        "compress_kv@L20": ("layers.20.attn.compress", "mirror"),
        "index_k@L20": ("layers.20.attn.index_keys", "mirror"),
        "topk@L20": ("layers.20.attn.select_topk", "chunk"),
        "candidates@L20": ("layers.20.attn.select_candidates", "chunk"),
    }


def test_bytes_are_the_manifests() -> None:
    manifest = split(FLASH, 10, 20, 30, 40)
    counted = [value["bytes_per_token"] for boundary in boundaries(manifest) for value in boundary["values"]]
    assert counted == [move.bytes_per_token for move in manifest.transfers]
    for boundary in boundaries(manifest):
        assert boundary["bytes_per_token"] == sum(value["bytes_per_token"] for value in boundary["values"])


def test_what_is_passed_on_keeps_its_producer() -> None:
    """A stage that reads nothing of a value carries it from the stage before to the one behind."""
    first, second, third = boundaries(split(FLASH, 21, 22, 23, 40))
    (kv,) = (value for value in third["values"] if value["kind"] == "compress_kv")
    assert (kv["value"], kv["producer"], kv["passed_on"]) == ("compress_kv@L20.S2", "layers.20.attn.compress", [])
    assert [value["passed_on"] for value in first["values"] if value["kind"] == "index_k"] == [[2]]
    assert [value["layers"] for value in second["values"] if value["kind"] == "index_k"] == [[]]


def test_a_device_that_comes_again_gets_nothing_twice() -> None:
    first, second = boundaries(split("toy", 3, 5, 8, devices='["cuda:0", "cuda:1", "cuda:0"]'))
    assert first["to"] == "cuda:1" and second["to"] == "cuda:0"
    assert not {value["kind"] for value in second["values"]} & {"ids", "index_k"}


@pytest.mark.parametrize("stages", [1, 2])
def test_the_command(run: Run, stages: int) -> None:
    sets = ("--set", 'placement.devices=["cpu:0", "cpu:1"]', "--set", "placement.layer_ends=[3, 8]")
    assert run("compile", "toy", "-o", "plan", *(sets if stages == 2 else ())).code == 0
    text, data = run("inspect", "plan", "--boundaries"), run("inspect", "plan", "--boundaries", "--json")
    whole = run("inspect", "plan")
    assert (text.code, data.code, whole.code) == (0, 0, 0)
    found = json.loads(data.out)
    assert (found["format"], found["name"], len(found["boundaries"])) == ("dsv41c.inspect/1.1", "toy", stages - 1)
    if stages == 1:
        assert text.out == "one stage, layers 0-7 on cpu:0: nothing crosses\n"
        assert "\nboundaries" not in whole.out
    else:
        assert text.out.startswith("0 -> 1, before layer 3, cpu:0 to cpu:1: ")
        assert "compress_kv@L2" in text.out and "read by stages.1.engram_ids" in text.out
        assert "boundaries  0 -> 1, before layer 3" in whole.out
    assert json.loads(run("inspect", "plan", "--json").out)["boundaries"] == found["boundaries"]
