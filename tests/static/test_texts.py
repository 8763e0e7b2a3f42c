"""The project speaks of itself alone: no paths of one machine in any file."""

import re

import pytest

from .tree import ROOT, texts

# Written apart, so that this file is not its own first finding. `someone` is nobody: tests may have a home of theirs.
MACHINE = re.compile(
    r"(?<![\w.$}])/(?:"
    + "|".join(["wo" + "rk", "ho" + "me", "ro" + "ot", "op" + "t", "Us" + "ers"])
    + r")/(?!someone/)\w"
)


@pytest.mark.parametrize("file", texts(), ids=lambda file: str(file.relative_to(ROOT)))
def test_no_paths_of_one_machine(file):
    found = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if MACHINE.search(line)
    ]
    assert not found
