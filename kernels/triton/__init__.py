"""Kernels for GPUs, written in Triton. Importing this package imports Triton: the registry does so on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The native kernels by op kind or fused kind; `kernels.fusion.NATIVE` says which there are to be.
NATIVE: dict[str, Callable[..., Any]] = {}
