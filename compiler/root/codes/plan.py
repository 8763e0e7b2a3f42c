"""Codes 80x to 84x: plan folders."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = ()
