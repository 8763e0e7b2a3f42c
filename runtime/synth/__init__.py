"""Random checkpoints in the official layout, for a plan whose real one is absent, too large, or never was."""

from __future__ import annotations

from dsv41c.runtime.synth.checkpoint import DEFAULT_MAX_BYTES, SynthReport, synth

__all__ = ["DEFAULT_MAX_BYTES", "SynthReport", "synth"]
