"""Codes 6xx: ops that the target cannot run."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = ()
