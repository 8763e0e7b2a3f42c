"""Plans in several shards, and the process of one of them: `python shards.py RANK SIZE STORE JOBS.json OUT`."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from os import environ
from pathlib import Path
from typing import Any

import torch

from dsv41c.kernels.reference.encodings import dense
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.stages.collectives import Collectives, GroupCollectives
from dsv41c.runtime.weights.bind import BoundWeights, Experts
from dsv41c.runtime.weights.table import StoredTable

Result = dict[str, Any]


def tokens(count: int, first: int = 0) -> list[int]:
    return [(11 + 37 * number) % 512 for number in range(first, first + count)]


def story(running: Engine) -> Result:
    """A prompt in odd chunks, one by its last row alone, greedy steps of one, two and three sessions."""
    a, b = running.open(), running.open()
    found = [running.feed(a, tokens(45), all_logits=True, chunk=7), running.feed(b, tokens(50, 20))]
    following = {a: int(found[0][-1].argmax())}
    greedy = []
    for step in range(9):
        logits = running.decode(following)
        following = {session: int(row.argmax()) for session, row in logits.items()}
        greedy.append(list(following.values()))
        found += list(logits.values())
        if step == 2:
            following[b] = int(found[1].argmax())
        elif step == 5:
            following[a.fork()] = 7
    return {"logits": found, "greedy": greedy}


def sublayers(running: Engine) -> Result:
    """What the sublayers of the first layer give, and what its experts get."""
    given = ("normed@L0.ffn", "expert_weights@L0", "expert_ids@L0")
    trace = Trace(frozenset((*given, "sublayer_out@L0.attn", "sublayer_out@L0.ffn")))
    running.feed(running.open(), tokens(21), all_logits=True, trace=trace)
    return dict(trace.steps[0].values)


Job = Mapping[str, Any]


def play(job: Job, collectives: Collectives | None = None) -> Result:
    """A job's scene on an engine of its own; without a scene, the logits of its `ids`, half fed and half decoded."""
    torch.set_num_threads(1)
    plan = load_plan(Path(job["plan"]))
    assert collectives is None or collectives.mailboxes(8) is None, "CPUs do not write into each other's memory"
    running = Engine(plan, job["checkpoint"], strict="strict" in job, collectives=collectives)
    if "scene" in job:
        return {"story": story, "sublayers": sublayers}[job["scene"]](running)
    session, ids = running.open(), job["ids"]
    rows = [running.feed(session, ids[:33], all_logits=True)]
    rows += [running.decode({session: token})[session][None] for token in ids[33:]]
    return {"logits": [torch.cat(rows)]}


def play_together(jobs: Sequence[Job], folder: Path) -> list[list[Result]]:
    """What each process of each job gives. A job has `shards`, which are the first of all processes."""
    size = max(job["shards"] for job in jobs)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    variables = {**environ, "OMP_NUM_THREADS": "1", **({"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {})}
    arguments = [str(size), *(str(folder / name) for name in ("store", "jobs.json", "out"))]
    started = [
        subprocess.Popen([sys.executable, __file__, str(rank), *arguments], env=variables, stderr=subprocess.PIPE)
        for rank in range(size)
    ]
    said = [process.communicate(timeout=240)[1].decode() for process in started]
    assert not any(process.returncode for process in started), "\n".join(said)
    found = [torch.load(f"{folder / 'out'}.{rank}") for rank in range(size)]
    return [[found[rank][number] for rank in range(job["shards"])] for number, job in enumerate(jobs)]


def plain_copy(bound: BoundWeights, source: Path, folder: Path) -> Path:
    """A checkpoint with every weight that was bound, as f32."""
    from safetensors.torch import save_file

    tensors = {}
    for binding in bound.matching.bindings:
        weight, shape = bound[binding.entry.id], binding.entry.shape
        items = [weight.rows(torch.arange(shape[0]))] if isinstance(weight, StoredTable) else [weight]
        for stored, item in zip(binding.stored, weight if isinstance(weight, Experts) else items, strict=True):
            tensors[stored.tensor.name] = dense(item, torch.float32).contiguous()  # type: ignore[arg-type]
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(source / name, folder / name)
    return folder


def main(rank: int, size: int, store: str, jobs: str, out: str) -> None:
    """A process of all: plays the jobs that it has a shard of, by number."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    wanted = json.loads(Path(jobs).read_text())
    groups = {count: torch.distributed.new_group(range(count)) for count in sorted({job["shards"] for job in wanted})}
    own = {number: job for number, job in enumerate(wanted) if rank < job["shards"]}
    played = {number: play(job, GroupCollectives(groups[job["shards"]])) for number, job in own.items()}
    torch.save(played, f"{out}.{rank}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
