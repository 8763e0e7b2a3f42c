"""What makes the codes of graph texts: the text of the toy's graph with one line changed."""

from __future__ import annotations

from dsv41c.compiler.build import build
from dsv41c.compiler.ir import parse
from dsv41c.compiler.spec import load


def _read(old: str = "", new: str = "") -> None:
    loaded = load("toy")
    assert loaded.spec is not None
    text = str(build(loaded.spec, loaded.spans))
    assert old in text
    parse(text.replace(old, new, 1))


TRIGGERS = {"DSV130": (lambda _: _read("layers.0.attn.mix =", "layers.0.attn.mix <-"), lambda _: _read())}
