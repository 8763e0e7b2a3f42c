"""Fixtures of all tests: specs from a few lines of YAML, and goldens that `--update-golden` rewrites for review."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsv41c.compiler.spec import Loaded, load


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files; review the diff")
    parser.addoption("--fuzz", type=int, default=150, help="cases of each fuzzer of file headers (default: 150)")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def fuzz_cases(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--fuzz"))


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Loaded]:
    """`loaded(lines, base="toy")`: a spec that extends a shipped one by some YAML."""

    def make(lines: str = "", base: str = "toy") -> Loaded:
        path = tmp_path / "spec.yaml"
        path.write_text(f"extends: {base}\n{lines}\n", encoding="utf-8")
        return load(str(path))

    return make
