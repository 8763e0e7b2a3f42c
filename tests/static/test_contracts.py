"""What the compiler may import of the other packages: contracts that are plain data, and nothing else."""

import ast
from pathlib import Path

import pytest

from .tree import FOLDERS, ROOT, modules

CONTRACTS = (
    "dsv41c.runtime.manifest",
    "dsv41c.runtime.memory",
    "dsv41c.runtime.work_space",
    "dsv41c.runtime.weights.gguf.config",
    "dsv41c.runtime.weights.headers",
    "dsv41c.kernels.catalog",
    "dsv41c.kernels.encodings",
    "dsv41c.kernels.fusion",
)


def imported(file: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def starts(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_of(file: Path):
    folder = file.relative_to(ROOT).parts[0]
    in_cli = file.parent == ROOT / "compiler" / "cli"
    for line, name in imported(file):
        place = f"{file.relative_to(ROOT)}:{line}: {name}"
        assert not starts(name, FOLDERS), f"{place}: say dsv41c.…"
        if folder == "compiler" and file.parent.name not in ("root", "codes"):
            assert not starts(name, ("torch", "safetensors", "tokenizers", "triton")), place
            if starts(name, ("dsv41c.runtime", "dsv41c.kernels")) and not in_cli:
                assert starts(name, CONTRACTS), f"{place}: the compiler sees only {', '.join(CONTRACTS)}"
        if folder == "runtime":
            assert not starts(name, ("dsv41c.compiler", "dsv41c.templates")), place
        if folder == "kernels":
            assert not starts(name, ("dsv41c.compiler", "dsv41c.runtime")), place
