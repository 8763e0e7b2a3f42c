"""Codes 2xx: unknown, missing, wrongly typed or contradicting keys."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = ()
