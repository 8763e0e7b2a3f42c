"""Codes 1xx: what is wrong with a text before it means anything."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = ()
