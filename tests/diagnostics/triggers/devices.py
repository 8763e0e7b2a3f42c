"""What sets off each code of captured work (87x): kernels that do what a graph cannot hold, and kernels that do not."""

from __future__ import annotations

import golden_tiny as tiny
import planted

from dsv41c.runtime.engine import Engine


def _unspoiled() -> None:
    """The same two steps with the kernels as they are."""
    plan = planted.for_family(tiny.plan(tiny.ORACLE, *planted.CHANGES, *planted.FOUR), "hpu")
    kernels = planted.Faulty("", lambda *_: None)
    with Engine(plan, tiny.TINY, weights=tiny.weights_for(plan), kernels=kernels, strict=True).open() as session:
        session.feed([7, 8])
        for token in (3, 4):
            session.engine.decode({session: token})


TRIGGERS = {
    planted.FAULTS[name].code: (lambda _, name=name: planted.run(name, "hpu"), lambda _: _unspoiled())
    for name in planted.SHOWN
}
