"""Codes 3xx: the lists of the layer map, by themselves."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = ()
