"""Codes 85x: sessions, token ids and text at run time."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = ()
