"""How many rows at the end of a prompt each region computes: worked out by hand, and row by row by brute force."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.passes import Program
from dsv41c.compiler.spec import Loaded, load
from dsv41c.kernels.catalog import CARRIERS

from ..strategies import loaded as of_data  # noqa: TID252 (tests are no installed package)
from ..strategies import specs  # noqa: TID252


def compiled(loaded: Loaded) -> Program:
    assert loaded.spec is not None, loaded.diagnostics
    return passes.run(Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans)), verify=True)


def tails(program: Program) -> list[int | None]:
    return [region.tail_rows for region in program.regions]


def test_the_released_model() -> None:
    found = {region.id: region.tail_rows for region in compiled(load("deepseek-v4.1-flash")).regions}
    assert found["layers.21"] == 2414
    assert found["layers.39"] == 128
    assert found["head"] == 1
    assert {found["embed"], *(found[f"layers.{layer}"] for layer in range(21))} == {None}
    assert [found[f"layers.{layer}"] for layer in range(21, 40)] == [
        128 + 127 * (39 - layer) for layer in range(21, 40)
    ]


def test_the_toy() -> None:
    assert tails(compiled(load("toy"))) == [*[None] * 7, 16 + 15, 16, 1]


LAYERS = """model: {n_layers: 4, n_mtp_layers: 0}
engram: null
placement: {devices: ["cpu:0"], layer_ends: [4]}
attention: {window_size: WINDOW}
layers: """
NONE = "compress_ratios: [0, 0, 0, 0], kv_source_layers: [], index_source_layers: []"
MAPS = {
    "source in the last layer": (8, "compress_ratios: [0, 0, 0, 1], kv_source_layers: [3], index_source_layers: [3]",
                                 [None, None, None, None, None, 1]),
    "window only": (8, NONE, [29, 29, 22, 15, 8, 1]),
    "window of one": (1, NONE, [1, 1, 1, 1, 1, 1]),
    "window of two": (2, NONE, [5, 5, 4, 3, 2, 1]),
    "source in the first layer": (8, "compress_ratios: [2, 2, 2, 2], kv_source_layers: [0], index_source_layers: [0]",
                                  [None, None, 22, 15, 8, 1]),
    "own selections": (8, "compress_ratios: [2, 2, 2, 2], kv_source_layers: [0], index_source_layers: [0, 2, 3]",
                       [None, None, 22, 15, 8, 1]),
    "late reads of candidates": (8, "compress_ratios: [1, 1, 1, 1], kv_source_layers: [0],"
                                 " index_source_layers: [0, 3], candidate_source_layer: 0",
                                 [None, None, 22, 15, 8, 1]),
    "sources with nothing between": (
        8, "compress_ratios: [1, 0, 1, 0], kv_source_layers: [0, 2], index_source_layers: [0, 2]",
        [None, None, None, None, 8, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_other_layer_maps(name: str, loaded) -> None:
    window, lists, expected = MAPS[name]
    lists = lists if "candidate" in lists else f"{lists}, candidate_source_layer: -1"
    text = LAYERS.replace("WINDOW", str(window)) + "{" + lists + ", engram_layers: []}"
    assert tails(compiled(loaded(text))) == expected


def test_a_history_of_ids_needs_every_id(loaded) -> None:
    """The embedding is in one region with the hashes, whose history every call goes on from."""
    text = LAYERS.replace("WINDOW", "8").replace("engram: null\n", "engram: {num_embeddings: [462]}\n")
    text += "{" + NONE + ", candidate_source_layer: -1, engram_layers: [3]}"
    assert tails(compiled(loaded(text)))[:2] == [None, 29]


@pytest.mark.parametrize("ends", [[7, 8], [6, 7, 8], [3, 6, 8]])
def test_stages_make_no_difference(ends: list[int], loaded) -> None:
    devices = [f"cuda:{number}" for number in range(len(ends))]
    program = compiled(loaded(f"placement: {json.dumps({'devices': devices, 'layer_ends': ends})}"))
    found = {region.id: region.tail_rows for region in program.regions if "engram_ids" not in region.id}
    assert list(found.values()) == [*[None] * 7, 31, 16, 1]
    assert all(r.tail_rows is None for r in program.regions if "engram_ids" in r.id)


def test_a_selection_is_needed_where_it_is_read(loaded) -> None:
    """Layer 3 takes nothing of layer 2 but its selection: that alone makes layer 2 compute what layer 3 does."""
    lists = "compress_ratios: [1, 1, 1, 1], kv_source_layers: [0], index_source_layers: [0, 2]"
    text = LAYERS.replace("WINDOW", "8") + "{" + lists + ", candidate_source_layer: -1, engram_layers: []}"
    found = loaded(text)
    graph = build(found.spec, found.spans)
    past = {"streams@L2.ffn": "streams@L1.ffn", "pre@L2.ffn": "pre@L1.ffn"}
    ops = [
        replace(op, reads=tuple((port, past.get(value, value)) for port, value in op.reads)) if op.layer == 3 else op
        for op in graph.ops
    ]
    program = passes.run(Program(found.spec, found.spans, replace(graph, ops=tuple(ops))))
    assert tails(program) == [None, None, 22, 15, 8, 1]
    assert program.regions[3].writes == ("topk@L2", "window_kv@L2")


# --- by brute force -------------------------------------------------------------------------------------------------

PROMPT = 64  # rows; more than any tail of the strategy's specs


def outliving(graph: Graph) -> Iterator[tuple[Op, int]]:
    """The rows of ops that something outlives a prompt of: state that can be read again, and the last logits."""
    for op in graph.ops:
        if op.kind == "head":
            yield op, PROMPT - 1
        elif op.kind == "window_store":
            yield from ((op, row) for row in range(PROMPT - int(op.attr("window")), PROMPT))
        elif op.kind in ("compress", "index_keys", "engram_ids"):
            yield from ((op, row) for row in range(PROMPT))


def needed(graph: Graph) -> set[tuple[str, int]]:
    """Every (op, row) that those depend on, each row of each value traced by itself."""
    found: set[tuple[str, int]] = set()
    waiting = list(outliving(graph))
    while waiting:
        op, row = waiting.pop()
        if row < 0 or (op.id, row) in found:
            continue
        found.add((op.id, row))
        for port, value in op.reads:
            producer = graph.producer(value)
            if producer is None or graph.values[value].scope == "session":
                continue
            before = int(op.attr("window")) if (op.kind, port) == ("attend", "window_rows") else 1
            waiting += [(producer, row - back) for back in range(before)]
    return found


@settings(max_examples=25, deadline=None)
@given(specs())
def test_brute_force_finds_the_same_rows(spec) -> None:
    program = compiled(of_data(spec))
    first: dict[str, int] = {}
    for op, row in needed(program.graph):
        first[op] = min(row, first.get(op, PROMPT))
    for region in program.regions:
        assert not {program.graph.by_id[op].kind for op in region.ops} & CARRIERS.keys()
        rows = PROMPT - min(first[op] for op in region.ops if op in first)
        expected = None if rows == PROMPT else rows
        assert region.tail_rows == expected or (region.tail_rows or 0) >= PROMPT, region.id
