"""Triggers of 1xx codes that no spec text can show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv41c.compiler.source import MAX_BYTES
from dsv41c.compiler.spec import Loaded, load


def _bytes(data: bytes) -> Callable[[Path], Loaded]:
    def trigger(folder: Path) -> Loaded:
        (folder / "spec.yaml").write_bytes(data)
        return load(str(folder / "spec.yaml"))

    return trigger


def _given(name: str) -> Callable[[Path], Loaded]:
    def trigger(folder: Path) -> Loaded:
        (folder / "spec.yaml").write_text("extends: toy\n")
        return load(str(folder / name))

    return trigger


TRIGGERS = {
    "DSV102": (_bytes(b"extends: toy  # caf\xe9\n"), _bytes("extends: toy  # café\n".encode())),
    "DSV103": (_bytes(b"extends: toy  # a\x1bb\n"), _bytes(b"extends: toy  # ab\n")),
    "DSV104": (_bytes(b"\xef\xbb\xbfextends: toy\n"), _bytes(b"extends: toy\n")),
    "DSV111": (_bytes(b"extends: toy\n" + b"#" * MAX_BYTES), _bytes(b"extends: toy\n#")),
    "DSV117": (_given("specs.yaml"), _given("spec.yaml")),
}
