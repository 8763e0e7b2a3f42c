"""Triggers of 1xx codes that no spec text can show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv41c.compiler.source import MAX_BYTES
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic


def _bytes(data: bytes) -> Callable[[Path], list[Diagnostic]]:
    def trigger(folder: Path) -> list[Diagnostic]:
        path = folder / "spec.yaml"
        path.write_bytes(data)
        return list(load(str(path)).diagnostics)

    return trigger


def _missing(folder: Path) -> list[Diagnostic]:
    return list(load(str(folder / "missing.yaml")).diagnostics)


TRIGGERS: dict[str, Callable[[Path], list[Diagnostic]]] = {
    "DSV102": _bytes(b"extends: toy\nname: caf\xe9\n"),
    "DSV103": _bytes(b"extends: toy\nname: a\x00b\n"),
    "DSV104": _bytes(b"\xef\xbb\xbfextends: toy\n"),
    "DSV111": _bytes(b"#" * (MAX_BYTES + 1)),
    "DSV117": _missing,
}
