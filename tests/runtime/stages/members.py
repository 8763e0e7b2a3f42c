"""Processes of one run, and what each of them does: `python members.py SCENE OUT` with torchrun's variables set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

COMMANDS = 5  # of `scenes`, each with a port of its own
CUTS = {
    2: [([6, 10], [0, 1]), ([2, 5, 6, 7, 10], [0, 0, 1, 0, 1])],
    4: [([1, 5, 7, 10], None), ([2, 4, 7, 8, 10], [0, 1, 2, 3, 1])],
}


def ports(count: int) -> list[str]:
    """Ports that nobody uses."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    found = [str(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return found


def started(size: int, command: Sequence[str], **more: str) -> list[subprocess.Popen[str]]:
    """So many processes with the variables that `torchrun` sets."""
    port, *others = ports(1 + COMMANDS)
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    shared["PORTS"] = ",".join(others)
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def played(size: int, scene: str, folder: Path) -> list[Any]:
    """What each of so many processes gives for a scene."""
    import torch

    members = started(size, [__file__, scene, str(folder / scene)])
    said = [member.communicate(timeout=200)[1] for member in members]
    assert not any(member.returncode for member in members), "\n".join(said)
    return [torch.load(folder / f"{scene}.{rank}", weights_only=False) for rank in range(size)]


# --- scenes: each gives what a process saw --------------------------------------------------------------------------


def numbers() -> dict[str, Any]:
    """All that has the numbers of one stage, in one start, by the part of it."""
    from scenes import commands, goldens, hurried, random_stories, sending_views
    from splits import split

    from dsv41c.runtime.stages.world import joined, processes

    cuts, folder = CUTS[processes()], Path(sys.argv[2]).parent
    with joined(split(*cuts[0]).manifest) as world:
        found = {"stories": [_story(cut, world) for cut in cuts], "random": random_stories(folder, world)}
        if world.size == 2:
            found["goldens"] = goldens(world)
            found["late"] = hurried(world, folder / "late")
            with sending_views():
                found["views"] = hurried(world, folder / "views")
    if "late" in found:
        found["commands"] = commands(folder)
    return found


def _story(cut: tuple[list[int], list[int] | None], world: Any) -> Any:
    """The story of `test_stages` on a cut, and what crossed."""
    from splits import engine_of, split
    from test_stages import story

    running = engine_of(split(*cut), world=world)
    traffic = running.executor.transport.traffic
    return story(running), {stage: (t.tokens, t.bytes) for stage, t in traffic.items()}


def failures() -> Any:
    """A stage fails in the middle of a decode step of two sessions; a third goes on, and the two after a reset."""
    from golden_tiny import ids
    from splits import engine_of, split

    from dsv41c.diagnostics import UserFault
    from dsv41c.kernels.registry import kernels_for
    from dsv41c.runtime.stages.world import joined

    class Failing:
        armed = False

        def __getattr__(self, kind: str) -> Any:
            if kind == "route" and self.armed:
                raise MemoryError("no room for this")
            return getattr(kernels_for("cpu"), kind)

    compiled, kernels = split([2, 4, 5, 6, 10], [0, 1, 1, 0, 1]), Failing()
    with joined(compiled.manifest) as world:
        running = engine_of(compiled, world=world, kernels=kernels)
        a, b, c = (running.open() for _ in range(3))
        for session in (a, b, c):
            session.feed(ids()[:9])
        kernels.armed = world.rank == 1
        try:
            running.decode({a: 1, b: 2})
        except (UserFault, MemoryError) as error:
            said = str(error)
        kernels.armed = False
        broken = (a.broken, b.broken, c.broken)
        first = c.feed([5])
        a.reset()
        a.feed(ids()[:9])
        return said, broken, torch_equal(a.feed([5]), first)


def torch_equal(a: Any, b: Any) -> bool:
    import torch

    return torch.equal(a, b)


def strangers() -> str:
    """One process feeds another session than the others do."""
    from splits import engine_of, split

    from dsv41c.diagnostics import UserFault
    from dsv41c.runtime.stages.world import joined

    compiled = split([6, 10])
    with joined(compiled.manifest) as world:
        running = engine_of(compiled, world=world)
        a, b = running.open(), running.open()
        try:
            (a if world.rank else b).feed([1, 2, 3])
        except UserFault as fault:
            return str([(found.code, found.message) for found in fault.diagnostics])
    return "nothing"


def pipelined() -> Any:
    """Two sessions whose steps overlap, each as it is alone; whether this process read state, and none foreign."""
    from golden_tiny import ids
    from splits import engine_of, split

    from dsv41c.runtime.stages.world import joined

    compiled, found = split([6, 10]), []
    with joined(compiled.manifest) as world:
        running = engine_of(compiled, world=world, debug=2)
        a, b, alone = (running.open() for _ in range(3))
        for session, tokens in ((a, ids()[:9]), (b, ids()[9:20]), (alone, ids()[:9])):
            session.feed(tokens)
        under_way = [running.start({a: 1}), running.start({b: 2})]
        for step in range(6):
            found.append(next(iter(under_way.pop(0).logits().values())))
            session = (a, b)[step % 2]
            if step < 4:
                under_way.append(running.start({session: int(found[-1].argmax())}))
        token = 1
        for step in (0, 2, 4):
            expected = running.decode({alone: token})[alone]
            found[step] = torch_equal(found[step], expected)
            token = int(expected.argmax())
            ledger = running.pools.ledger
        assert ledger is not None
    return [*found[::2], bool(ledger.reads) and not ledger.first]


SCENES: dict[str, Callable[[], Any]] = {scene.__name__: scene for scene in (numbers, failures, strangers, pipelined)}


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    torch.save(SCENES[sys.argv[1]](), f"{sys.argv[2]}.{os.environ['RANK']}")
