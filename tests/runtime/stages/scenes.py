"""Parts of what several processes play together, each with what one process gives for the same."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import random_plans
import torch
from golden_tiny import ORACLE, TINY, ids, plan, weights, weights_for
from planted import CHANGES, FOUR
from splits import ONE, split
from torch import Tensor

from dsv41c.compiler.cli import main
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.stages.crossing import Crossing, Rows
from dsv41c.runtime.stages.layout import Stage
from dsv41c.runtime.stages.processes import Header, ProcessTransport, _checksum
from dsv41c.runtime.stages.world import World
from dsv41c.runtime.state import Pools

# --- goldens ---------------------------------------------------------------------------------------------------------

PACKED = ("kv_cache: reference", "kv_cache: packed")
MODE = "bf16-act_fp8-kv_reference"


def goldens(world: World | None = None) -> list[Tensor]:
    """The golden's tokens in bf16 on packed caches, a few as decode steps: on two devices, or as one stage alone."""
    cut = plan(MODE, PACKED) if world is None else split([3, 7, 10], [0, 1, 0], PACKED, mode=MODE)
    running = Engine(cut, TINY, weights=weights(MODE), world=world)
    session, tokens = running.open(), ids()
    found = [session.feed(tokens[:60], all_logits=True, chunk=23)]
    return found + [running.decode({session: token})[session] for token in tokens[60:]]


# --- random models ---------------------------------------------------------------------------------------------------


def random_stories(folder: Path, world: World | None = None) -> list[list[Tensor]]:
    """The stories of the random models in a folder, on the stages they have there, or as one stage alone."""
    found = []
    for number, one in enumerate(sorted(folder.glob("*.one"))):
        whole = load_plan(one)
        cut = whole if world is None else load_plan(one.with_suffix(".cut"))
        running = Engine(cut, folder, weights=random_plans.weights_of(whole), world=world)
        found.append(random_plans.story(running, number))
    return found


# --- a receiver that is late -----------------------------------------------------------------------------------------


def hurried(world: World | None = None, flag: Path | None = None) -> tuple[list[Tensor], int]:
    """Captured steps of a session, asked for before the first has ended; half-way it is reset, and its rows come again.

    Graphs leave their values where the last step's were, and the reset session appends where it did before. The second
    process receives nothing before the first has asked for all, which the `flag` says. With it, how many messages are
    kept at the end.
    """
    cut = (ONE, "placement: {devices: [cpu:0, cpu:1], layer_ends: [3, 4]}")
    compiled = plan(ORACLE, *CHANGES, *FOUR[:-1], cut)
    running = Engine(compiled, TINY, weights=weights_for(compiled), strict=True, world=world)
    session, tokens = running.open(), ids()
    with late(flag if world is not None and world.rank else None):
        asked = [running.start({session: token}) for token in tokens[:6]]
        session.reset()
        asked += [running.start({session: token}) for token in tokens[20:26]]
    if flag is not None:
        flag.touch()
    found = [next(iter(each.logits().values())) for each in asked]
    return found, len(getattr(running.executor.transport, "_sending", ()))


@contextmanager
def late(flag: Path | None) -> Iterator[None]:
    """Headers are received when the flag is there, at once without one."""
    header = ProcessTransport._header

    def slow(self: ProcessTransport, stage: Stage) -> Header:
        while flag is not None and not flag.exists():
            time.sleep(0.01)
        return header(self, stage)

    with patch.object(ProcessTransport, "_header", slow):
        yield


@contextmanager
def sending_views() -> Iterator[None]:
    """What leaves is sent where it is, not as a message of its own that is kept."""

    def leave(
        self: ProcessTransport, crossing: Crossing, values: Mapping[str, Tensor], pools: Pools, rows: Rows
    ) -> None:
        self._send(Header(self._step, _checksum(rows), crossing.bytes(rows)).packed(), crossing.boundary.to)
        for part in crossing.leaving(values, pools, rows):
            if part.numel():
                self._send(part.view(torch.uint8).flatten(), crossing.boundary.to)

    def arrive(
        self: ProcessTransport, crossing: Crossing, values: MutableMapping[str, Tensor], pools: Pools, rows: Rows
    ) -> None:
        parts = []
        for shape, dtype in crossing.forms(rows):
            size = torch.Size(shape).numel() * dtype.itemsize
            parts.append(self._message(crossing.boundary.source, size).view(dtype).view(shape))
        crossing.arrive(parts, values, pools, rows)

    with patch.object(ProcessTransport, "leave", leave), patch.object(ProcessTransport, "arrive", arrive):
        yield


# --- the command -----------------------------------------------------------------------------------------------------

IDS = ("--ids", "7,8,9,10,11,12,13", "-n", "5")
WARM = ("--prompt", "one two three", "-n", "6", "--temperature", "0.9", "--top-p", "0.8")
COMMANDS: tuple[tuple[str, ...], ...] = (
    (*IDS, "--logits-out", "logits.safetensors"),
    (*IDS, "--json", "--temperature", "1.5"),
    (*WARM, "--seed", "5", "--tail", "bounded"),
    (*IDS, "--compare", "reference"),
    (*IDS, "--states-out", "states.safetensors"),
)


def said(folder: Path, command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, result and talk of a `run` of the plan in a folder, whose files it writes there."""
    out, err = io.StringIO(), io.StringIO()
    named = [str(folder / word) if word.endswith(".safetensors") else word for word in command]
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["run", str(folder / "commands.plan"), "--checkpoint", str(TINY), *named])
    return code, out.getvalue(), err.getvalue()


def commands(folder: Path) -> list[tuple[int, str, str]]:
    """What each command says in this process of two; every one is a run of its own."""
    found = []
    for port, command in zip(os.environ["PORTS"].split(","), COMMANDS, strict=True):
        with patch.dict(os.environ, MASTER_PORT=port):
            found.append(said(folder, command))
    return found
