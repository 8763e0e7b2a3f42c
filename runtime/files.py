"""Writing results: whole or not at all, and refused before the work where it cannot succeed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.whole import replacing


def check_writable(paths: list[Path]) -> None:
    """Raise `UserFault` (DSV865) with a finding for each path that cannot be written."""
    faults = [fault for path in paths for fault in _findings(path)]
    if len(set(map(os.path.abspath, paths))) < len(paths):
        faults.append(_fault(paths[0], "two results would be written to the same file", "name different files"))
    if faults:
        raise UserFault(faults)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file whole or not at all. Raises `UserFault` (DSV865) where that fails."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with replacing(path) as temporary:
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, temporary)
    except (OSError, SafetensorError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise UserFault([_fault(path, why, "choose another place")]) from None


def _findings(path: Path) -> list[Diagnostic]:
    parent = path.parent
    if not parent.is_dir():
        return [_fault(path, f"there is no folder `{parent}`", "make it first")]
    if path.is_dir():
        return [_fault(path, "it is a folder, expected a file", "name a file in it")]
    if path.exists() and not path.is_file():
        return [_fault(path, "it is no plain file", "name a file")]
    if not os.access(parent, os.W_OK | os.X_OK):
        return [_fault(path, f"the folder `{parent}` is not writable", "choose another folder")]
    return []


def _fault(path: Path, message: str, help_text: str) -> Diagnostic:
    return Diagnostic("DSV865", f"`{path}` cannot be written: {message}", Span(str(path)), help=help_text)
