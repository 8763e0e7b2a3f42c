"""Compiles the toy model, makes a random checkpoint of it, and runs two sessions side by side on the CPU."""

import tempfile
from pathlib import Path

from dsv41c.compiler.cli import main as dsv41c
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        plan, checkpoint = Path(name, "toy.plan"), Path(name, "toy.checkpoint")
        assert dsv41c(["compile", "toy", "-o", str(plan)]) == 0
        assert dsv41c(["synth", "toy", "-o", str(checkpoint)]) == 0

        engine = Engine(load_plan(plan), checkpoint)
        one, two = engine.open(), engine.open()
        logits = {one: one.feed([0, 17, 42, 99]), two: two.feed([0, 7])}
        written = {one: [], two: []}
        for _ in range(8):
            chosen = {session: int(row.argmax()) for session, row in logits.items()}
            for session, token in chosen.items():
                written[session].append(token)
            logits = engine.decode(chosen)
        print("one:", written[one])
        print("two:", written[two])


if __name__ == "__main__":
    main()
