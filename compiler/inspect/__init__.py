"""Sections of what a plan holds, from its manifest: `data` for programs, `overview` and `lines` for a person."""
