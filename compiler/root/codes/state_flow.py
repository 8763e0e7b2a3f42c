"""Codes 4xx: state that is read and not produced, produced twice, never read, or of another history."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = ()
