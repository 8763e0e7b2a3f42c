"""What `compile` prints over an older plan."""

from __future__ import annotations

import pytest

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.plan.diff import diff

FLASH = "deepseek-v4.1-flash"


@pytest.fixture
def changed(loaded):
    def between(before: str, after: str, base: str = "toy"):
        return diff(compile_spec(loaded(before, base)).manifest, compile_spec(loaded(after, base)).manifest)

    return between


def two(end, last=8):
    return f"placement: {{devices: ['cpu:0', 'cpu:1'], layer_ends: [{end}, {last}]}}"


def test_nothing_changed(changed):
    difference = changed("", "")
    assert difference.lines == () and difference.summary == "0 changed, 0 added, 0 removed"


def test_a_moved_boundary(changed):
    difference = changed(two(20, 40), two(22, 40), FLASH)
    assert difference.lines == (
        "~ layers.20-21 stage 1 -> 0",
        "~ layers.20-21 device cpu:1 -> cpu:0",
        "- transfer streams@L19.ffn stage 0 -> 1, 40,960 bytes per token",
        "- transfer pre@L19.ffn stage 0 -> 1, 16 bytes per token",
        "+ transfer streams@L21.ffn stage 0 -> 1, 40,960 bytes per token",
        "+ transfer pre@L21.ffn stage 0 -> 1, 16 bytes per token",
        "+ transfer compress_kv@L20 stage 0 -> 1, 1,024 bytes per token",
        "+ transfer index_k@L20 stage 0 -> 1, 256 bytes per token",
        "+ transfer topk@L20 stage 0 -> 1, 2,048 bytes per token",
        "+ transfer candidates@L20 stage 0 -> 1, 64 bytes per token",
    )
    assert difference.summary == "2 changed, 6 added, 2 removed"


def test_a_change_of_every_layer_stays_readable(changed):
    lines = changed("", "numerics: {compute: f32}", FLASH).lines
    assert lines[0] == "~ numerics.compute bf16 -> f32"
    assert len(lines) < 10
    assert any(line.startswith("~ layers.0-39 value ") and line.endswith("dtype bf16 -> f32") for line in lines)


def test_attributes_and_settings(changed):
    assert changed("", "moe: {swiglu_limit: 0.0}").lines == (
        "~ layers.0-7 op ffn.experts, op ffn.shared_expert limit 2.0 -> 0.0",
    )
    larger = changed("", "runtime: {max_context: 1024}").lines
    assert larger[0] == "~ runtime.max_context 512 -> 1024"
    assert any("value compress_kv" in line for line in larger) and not any(".before" in line for line in larger)
    assert changed("", "runtime: {decode_buckets: [1, 2]}").lines == ("~ runtime.decode_buckets [1, 2, 4] -> [1, 2]",)


def test_a_part_more_and_less(changed):
    without = "layers: {engram_layers: [1]}\nengram: {num_embeddings: [462]}"
    removed, added = changed("", without), changed(without, "")
    assert removed.lines[0] == "~ engram.layers [1, 4] -> [1]"
    assert any(
        line.startswith("- layers.4 value engram_rows") and "weight engram_table" in line for line in removed.lines
    )
    assert removed.removed == added.added == 1 and removed.added == added.removed == 0


def test_another_reader(changed):
    lines = changed("", "layers: {candidate_source_layer: -1}").lines
    assert "- layers.5 value candidates, op attn.select_candidates" in lines
    assert "~ layers.7 op attn.index_score candidates candidates@L5 -> none" in lines


def test_a_moved_line_is_named_as_such(changed):
    difference = changed("runtime: {max_sessions: 4}", "\n\nruntime: {max_sessions: 4}")
    assert difference.lines == ()
    difference = changed("mhc: {eps: 1e-6}", "\n\n\nmhc: {eps: 1e-6}")
    assert difference.summary in ("0 changed, 0 added, 0 removed", "1 changed, 0 added, 0 removed")
