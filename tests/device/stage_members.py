"""What a plan on two GPUs is asked to do, and each process of it: `python stage_members.py KIND FOLDER`.

Kinds: `one` (one GPU), `both` (one process drives two), and with the variables of torchrun set `processes` (a stage
each) and `shards` (one stage split over two). All give the same numbers, or nearly.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import random_plans
import torch
from torch import Tensor

from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.spec import load
from dsv41c.kernels.reference.encodings import Packed, Stacked
from dsv41c.kernels.reference.rows import unpack
from dsv41c.runtime.bench.random_weights import random_weights
from dsv41c.runtime.device.tensors import on_device
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.session import Session
from dsv41c.runtime.stages.weights import PlacedWeights
from dsv41c.runtime.stages.world import World, joined

# The released widths, and all that may cross a boundary, in eight layers.
CUT = """\
extends: deepseek-v4.1-flash
name: flash-cut
model: {n_layers: 8}
layers:
  compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1]
  kv_source_layers: [2, 5]
  index_source_layers: [2, 4, 5, 7]
  candidate_source_layer: 5
  engram_layers: [1]
engram: {num_embeddings: [384006168]}
numerics: {kv_cache: packed}
placement: {layer_ends: [8]}
runtime: {max_context: 1024, max_sessions: 3, prefill_chunk: 128, decode_buckets: [1, 2]}
"""
MODELS = {"toy": ("extends: toy\n", 8, 4), "cut": (CUT, 8, 6)}  # text, layers, cut before
PARTS = {
    "one": [],
    "both": ['placement.devices=["cuda:0","cuda:1"]', "placement.layer_ends=[{cut},{layers}]"],
    "shards": ["placement.tensor_parallel=2"],
}
PLAN_OF = {"processes": "both"}
RANDOM = 2  # models
EXPERTS, TABLE_ROWS = 16, 1 << 16
RING = "window_kv@L1"  # the first state that layer 0's output is in, decode steps and prompts alike
Result = dict[str, Any]


def write(folder: Path, specs: Callable[..., Any]) -> None:
    """Every plan, `MODEL.KIND`; `specs` draws random models."""
    for name, (text, layers, cut) in MODELS.items():
        for kind, sets in PARTS.items():
            changes = [change.format(cut=cut, layers=layers) for change in sets]
            write_plan(
                compile_spec(load("-", stdin=text.encode, target="cuda", sets=changes)), folder / f"{name}.{kind}"
            )
    for number, spec in enumerate(random_plans.drawn(specs, RANDOM, 5)):
        layers = spec["model"]["n_layers"]
        both = random_plans.stages(random.Random(number), layers, 2)
        both["devices"] = [device.replace("cpu", "cuda") for device in both["devices"]]
        for kind, placement in (("one", {"devices": ["cuda:0"], "layer_ends": [layers]}), ("both", both)):
            random_plans.compiled(spec, folder / f"random{number}.{kind}", placement)


def part_of(weight: Any, axis: str, rank: int) -> Any:
    """A shard's half of a weight."""
    along = -2 if axis == "rows" else -1
    if isinstance(weight, Packed | Stacked):
        codes, scale = (part.chunk(2, along)[rank].contiguous() for part in (weight.codes, weight.scale))
        return type(weight)(codes, scale, weight.encoding)
    if isinstance(weight, list):
        return [part_of(each, axis, rank) for each in weight]
    return weight.chunk(2, 0 if weight.dim() == 1 else along)[rank].contiguous()


def halves(manifest: Manifest, whole: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The weights of a shard, of those of the whole."""
    split = {entry.id: entry.shard.axis for entry in manifest.weights if entry.shard is not None}
    return {name: part_of(weight, split[name], rank) if name in split else weight for name, weight in whole.items()}


def weights(name: str, folder: Path, place: torch.device) -> dict[str, Any]:
    """The whole model's, the same in every process."""
    one = load_plan(folder / f"{name}.one")
    if name.startswith("random"):
        return on_device(random_plans.weights_of(one), place)
    stored = EXPERTS if name == "cut" else None
    return random_weights(one.manifest, place, stored_experts=stored, table_rows=TABLE_ROWS, seed=3)


def engine(name: str, kind: str, folder: Path, world: World | None) -> Engine:
    plan = load_plan(folder / f"{name}.{PLAN_OF.get(kind, kind)}")
    place = torch.device("cuda", world.local if world is not None else 0)
    given: Any = weights(name, folder, place)
    if kind == "both":
        given = PlacedWeights({0: given, 1: weights(name, folder, torch.device("cuda", 1))})
    elif kind == "shards":
        assert world is not None
        given = halves(plan.manifest, given, world.shard)
    return Engine(plan, folder, weights=given, world=world)


def story(running: Engine) -> Result:
    """A prompt in odd chunks with every row and selection, a second session, captured steps of up to three."""
    size = running.manifest.model.vocab_size
    tokens = [(7 + 131 * number) % size for number in range(220)]
    trace = Trace(frozenset(v.id for v in running.manifest.values if v.kind in ("topk", "candidates")))
    a, b = running.open(), running.open()
    found = [running.feed(a, tokens[:150], all_logits=True, chunk=61, trace=trace), b.feed(tokens[50:61])]
    for step, token in enumerate(tokens[150:156]):
        found += running.decode({a: token}).values()
        if step > 1:
            found += running.decode({b: token, a: token + 1}).values()
    c = a.fork()
    found += running.decode({a: 1, b: 2, c: 3}).values()
    ring = (
        running.pools.tensors[running.pools.storage_of[RING]][a.slot].cpu()
        if running.layout.devices[1:] == ()
        else None
    )
    found += hurried(running, c, tokens)
    assert running.captured is not None
    steps = enumerate(trace.steps)
    chosen = {f"{number}.{name}": value.cpu() for number, step in steps for name, value in step.values.items()}
    return {"logits": [row.cpu() for row in found], "chosen": chosen, "ring": ring}


def rows_of(running: Engine, session: Session) -> Tensor | None:
    """The window rows of RING; None where there are several devices, of which it may be on any."""
    if len(running.layout.devices) > 1:
        return None
    rows = running.pools.tensors[running.pools.storage_of[RING]][session.slot]
    return unpack("window_kv", rows).float().cpu() if rows.dtype == torch.uint8 else rows.float().cpu()


def hurried(running: Engine, session: Session, tokens: Sequence[int]) -> list[Tensor]:
    """Steps that are asked for before the first has ended; half-way the session is reset, and its rows come again.

    The last device of this process is held up meanwhile: what it is given must keep its numbers.
    """
    last = running.devices[max(running.devices)].place
    with torch.cuda.device(last):
        torch.cuda._sleep(60_000_000)  # cycles: about 30 ms
    asked = [running.start({session: token}) for token in tokens[:6]]
    session.reset()
    asked += [running.start({session: token}) for token in tokens[20:26]]
    return [row for each in asked for row in each.logits().values()]


def play(kind: str, folder: Path, world: World | None) -> dict[str, Result]:
    """What this process sees, by model."""
    found: dict[str, Result] = {}
    for file in sorted(folder.glob(f"*.{PLAN_OF.get(kind, kind)}")):
        name = file.name.partition(".")[0]
        running = engine(name, kind, folder, world)
        if name.startswith("random"):
            found[name] = {"logits": [row.cpu() for row in random_plans.story(running, int(name[6:]))], "chosen": {}}
        else:
            found[name] = story(running)
        del running
        torch.cuda.empty_cache()
    return found


def main(kind: str, folder: Path) -> None:
    """Play, and leave what was seen in `KIND.RANK`."""
    several = kind in ("processes", "shards")
    first = load_plan(folder / f"toy.{PLAN_OF.get(kind, kind)}")
    with joined(first.manifest) if several else nullcontext() as world, torch.no_grad():
        torch.save(play(kind, folder, world), folder / f"{kind}.{world.rank if world is not None else 0}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
