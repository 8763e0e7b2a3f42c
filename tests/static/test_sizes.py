"""One idea a file, one screen a function: hard caps, and the largest of both printed for whoever wonders."""

import ast
from pathlib import Path

from .tree import ROOT, modules

MAX_FILE = 400
MAX_FUNCTION = 60


def lengths(file: Path) -> list[tuple[int, str]]:
    """Lines of each function of a file, its docstring not counted, with its place."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            found.append((node.end_lineno - first.lineno + 1, f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return found


def test_files():
    largest = sorted(((len(f.read_text().splitlines()), str(f.relative_to(ROOT))) for f in modules()), reverse=True)
    print(*(f"{lines:5} {name}" for lines, name in largest[:10]), sep="\n")
    assert not [f"{name}: {lines} lines" for lines, name in largest if lines > MAX_FILE]


def test_functions():
    largest = sorted((item for file in modules() for item in lengths(file)), reverse=True)
    print(*(f"{lines:5} {name}" for lines, name in largest[:10]), sep="\n")
    assert not [f"{name}: {lines} lines" for lines, name in largest if lines > MAX_FUNCTION]
