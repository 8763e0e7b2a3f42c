"""Specs: what may be written (`models`), how it is found and merged (`load`), and how it is written out (`write`)."""

from dsv41c.compiler.spec.load import Loaded, load
from dsv41c.compiler.spec.locate import shipped_names
from dsv41c.compiler.spec.models import SECTIONS, Section, Spec

__all__ = ["SECTIONS", "Loaded", "Section", "Spec", "load", "shipped_names"]
