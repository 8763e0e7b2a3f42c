"""Checkpoints written anew with the same values in another layout, one that is read in fewer and longer pieces."""

from __future__ import annotations

from dsv41c.runtime.repack.checkpoint import RepackReport, repack

__all__ = ["RepackReport", "repack"]
