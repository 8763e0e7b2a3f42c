"""Mutations: each takes a valid spec of its own and gives it with one mistake, or None where it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Spec = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]


def _pick(draw: Draw, options: Any) -> Any:
    options = list(options)
    return draw(st.sampled_from(options)) if options else None


def _sources(spec: Spec) -> tuple[list[int], list[int], list[int]]:
    layers = spec["layers"]
    return layers["compress_ratios"], layers["kv_source_layers"], layers["index_source_layers"]


def _list(draw: Draw, spec: Spec, least: int) -> list[int] | None:
    names = ("kv_source_layers", "index_source_layers", "engram_layers")
    return _pick(draw, [spec["layers"][name] for name in names if len(spec["layers"].get(name, [])) >= least])


def _readers(spec: Spec, source: int) -> list[int]:
    """Layers that read a KV source, the source left out."""
    ratios, kv, _ = _sources(spec)
    end = min([x for x in kv if x > source], default=len(ratios))
    return [layer for layer in range(source + 1, end) if ratios[layer]]


def out_of_range(draw: Draw, spec: Spec) -> Spec | None:
    numbers = _list(draw, spec, 1)
    if numbers is None:
        return None
    numbers[draw(st.integers(0, len(numbers) - 1))] = spec["model"]["n_layers"] + draw(st.integers(0, 3))
    return spec


def negative(draw: Draw, spec: Spec) -> Spec | None:
    numbers = _list(draw, spec, 1)
    if numbers is None:
        return None
    numbers[draw(st.integers(0, len(numbers) - 1))] = -draw(st.integers(1, 9))
    return spec


def repeated(draw: Draw, spec: Spec) -> Spec | None:
    numbers = _list(draw, spec, 1)
    if numbers is None:
        return None
    at = draw(st.integers(0, len(numbers) - 1))
    if draw(st.booleans()):
        numbers.insert(draw(st.integers(0, len(numbers))), numbers[at])
    elif len(numbers) > 1:
        numbers[at] = numbers[at - 1]
    else:
        return None
    return spec


def swapped(draw: Draw, spec: Spec) -> Spec | None:
    numbers = _list(draw, spec, 2)
    if numbers is None:
        return None
    at = draw(st.integers(1, len(numbers) - 1))
    numbers[at - 1], numbers[at] = numbers[at], numbers[at - 1]
    return spec


def source_on_window_layer(draw: Draw, spec: Spec) -> Spec | None:
    ratios, kv, index = _sources(spec)
    layer = _pick(draw, [layer for layer, ratio in enumerate(ratios) if ratio == 0])
    if layer is None:
        return None
    lists = _pick(draw, [[kv], [index], [kv, index]])
    for numbers in lists:
        if draw(st.booleans()) and numbers and lists == [numbers]:
            numbers[draw(st.integers(0, len(numbers) - 1))] = layer
        else:
            numbers.append(layer)
            numbers.sort()
    return spec


def source_loses_branch(draw: Draw, spec: Spec) -> Spec | None:
    ratios, _, index = _sources(spec)
    layer = _pick(draw, index)
    if layer is None:
        return None
    ratios[layer] = 0
    return spec


def first_source_missing(draw: Draw, spec: Spec) -> Spec | None:
    _, kv, index = _sources(spec)
    if not kv or "reads" in spec["layers"]:
        return None
    index.remove(kv.pop(0))
    return spec


def window_layer_gains_branch(draw: Draw, spec: Spec) -> Spec | None:
    ratios, kv, _ = _sources(spec)
    layer = _pick(draw, range(kv[0] if kv else len(ratios)))
    if layer is None:
        return None
    ratios[layer] = draw(st.sampled_from([1, 2, 3]))
    return spec


def source_selects_nothing(draw: Draw, spec: Spec) -> Spec | None:
    _, kv, index = _sources(spec)
    if not kv or "reads" in spec["layers"]:
        return None
    index.remove(_pick(draw, kv))
    return spec


def reader_of_other_ratio(draw: Draw, spec: Spec) -> Spec | None:
    ratios, kv, _ = _sources(spec)
    source = _pick(draw, [source for source in kv if _readers(spec, source)])
    if source is None:
        return None
    layer = _pick(draw, [source, *_readers(spec, source)])
    ratios[layer] += draw(st.sampled_from([1, 2]))
    return spec


def candidate_elsewhere(draw: Draw, spec: Spec) -> Spec | None:
    ratios, kv, _ = _sources(spec)
    layers = [layer for layer in range(len(ratios) + 2) if not kv or layer != kv[-1]]
    spec["layers"]["candidate_source_layer"] = _pick(draw, layers)
    return spec


def rows_lost(draw: Draw, spec: Spec) -> Spec | None:
    if "engram" not in spec or len(spec["engram"]["num_embeddings"]) < 2:
        return None
    spec["engram"]["num_embeddings"].pop()
    return spec


def rows_wrong(draw: Draw, spec: Spec) -> Spec | None:
    if "engram" not in spec:
        return None
    rows = spec["engram"]["num_embeddings"]
    for at in range(len(rows)) if draw(st.booleans()) else [0]:
        rows[at] += draw(st.integers(1, 5))
    return spec


def engram_section_lost(draw: Draw, spec: Spec) -> Spec | None:
    return spec if spec.pop("engram", None) else None


def engram_layers_lost(draw: Draw, spec: Spec) -> Spec | None:
    return spec if spec["layers"].pop("engram_layers", None) else None


def read_of_later(draw: Draw, spec: Spec) -> Spec | None:
    ratios, kv, index = _sources(spec)
    kind, makers = draw(st.sampled_from([("compress_kv", kv), ("topk", index)]))
    pairs = [(layer, maker) for maker in makers for layer in range(maker) if ratios[layer]]
    return _named(draw, spec, kind, pairs)


def read_of_no_maker(draw: Draw, spec: Spec) -> Spec | None:
    ratios, kv, index = _sources(spec)
    kind, makers = draw(st.sampled_from([("compress_kv", kv), ("topk", index)]))
    layers = range(len(ratios))
    return _named(draw, spec, kind, [(a, b) for a in layers if ratios[a] for b in range(a + 1) if b not in makers])


def read_not_made(draw: Draw, spec: Spec) -> Spec | None:
    ratios, _, _ = _sources(spec)
    kind = draw(st.sampled_from(["compress_kv", "topk", "index_k", "candidates"]))
    return _named(draw, spec, kind, [(layer, 0) for layer, ratio in enumerate(ratios) if ratio == 0])


def read_of_nowhere(draw: Draw, spec: Spec) -> Spec | None:
    return _named(draw, spec, "topk", [(spec["model"]["n_layers"] + draw(st.integers(0, 5)), 0)])


def selection_across_source(draw: Draw, spec: Spec) -> Spec | None:
    ratios, kv, index = _sources(spec)
    layers = [layer for layer, ratio in enumerate(ratios) if ratio]
    pairs = [(a, b) for a in layers for b in index if b < max(x for x in kv if x <= a)]
    return _named(draw, spec, "topk", pairs)


def history_across_source(draw: Draw, spec: Spec) -> Spec | None:
    """A layer re-sourced to an earlier history of its own ratio, its selection left as it was."""
    ratios, kv, _ = _sources(spec)
    layers = [layer for layer, ratio in enumerate(ratios) if ratio]
    pairs = [(a, b) for a in layers for b in kv if b < max(x for x in kv if x <= a) and ratios[a] == ratios[b]]
    return _named(draw, spec, "compress_kv", pairs)


def _named(draw: Draw, spec: Spec, kind: str, pairs: list[tuple[int, int]]) -> Spec | None:
    pair = _pick(draw, pairs)
    if pair is None:
        return None
    spec["layers"]["reads"] = {str(pair[0]): {kind: pair[1]}}
    return spec


def _stages(spec: Spec) -> tuple[list[str], list[int]] | None:
    return (spec["placement"]["devices"], spec["placement"]["layer_ends"]) if "placement" in spec else None


def layers_not_placed(draw: Draw, spec: Spec) -> Spec | None:
    stages = _stages(spec)
    if stages is None or len(stages[1]) < 2:
        return None
    stages[0].pop(), stages[1].pop()
    return spec


def layers_placed_beyond(draw: Draw, spec: Spec) -> Spec | None:
    stages = _stages(spec)
    if stages is None:
        return None
    stages[1][-1] += draw(st.integers(1, 3))
    return spec


def stages_swapped(draw: Draw, spec: Spec) -> Spec | None:
    stages = _stages(spec)
    if stages is None or len(stages[1]) < 2:
        return None
    stages[1].reverse()
    return spec


def stage_repeated(draw: Draw, spec: Spec) -> Spec | None:
    stages = _stages(spec)
    if stages is None:
        return None
    at = draw(st.integers(0, len(stages[1]) - 1))
    stages[1].insert(at, stages[1][at])
    stages[0].insert(at, stages[0][at])
    return spec


def device_lost(draw: Draw, spec: Spec) -> Spec | None:
    stages = _stages(spec)
    if stages is None or len(stages[0]) < 2:
        return None
    stages[_pick(draw, [0, 1])].pop()
    return spec


def families_mixed(draw: Draw, spec: Spec) -> Spec | None:
    stages = _stages(spec)
    if stages is None or len(stages[0]) < 2:
        return None
    family = stages[0][0].partition(":")[0]
    stages[0][-1] = "cuda:0" if family != "cuda" else "rocm:0"
    return spec


MUTATIONS: dict[str, Callable[[Draw, Spec], Spec | None]] = {
    function.__name__: function
    for function in (
        out_of_range,
        negative,
        repeated,
        swapped,
        source_on_window_layer,
        source_loses_branch,
        first_source_missing,
        window_layer_gains_branch,
        source_selects_nothing,
        reader_of_other_ratio,
        candidate_elsewhere,
        rows_lost,
        rows_wrong,
        engram_section_lost,
        engram_layers_lost,
        read_of_later,
        read_of_no_maker,
        read_not_made,
        read_of_nowhere,
        selection_across_source,
        history_across_source,
        layers_not_placed,
        layers_placed_beyond,
        stages_swapped,
        stage_repeated,
        device_lost,
        families_mixed,
    )
}
