"""Where a spec, a base or a target is found: a file, standard input, or the data that ships with the package."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

from dsv41c.compiler.source import MAX_BYTES, read_file, shown_key
from dsv41c.compiler.spec.mechanical import respelled
from dsv41c.compiler.spec.near import with_hint
from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.report.escape import escape

Stdin = Callable[[], str | bytes]


@dataclass(frozen=True, slots=True)
class Origin:
    """A text and where it came from. `identity` is the same for the same file; `directory` holds its neighbours."""

    data: str | bytes
    file: str
    identity: str
    directory: Path | None = None


def read_stdin() -> bytes:
    """What standard input holds, up to just over the limit of a text."""
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def shipped_names(folder: str = "") -> tuple[str, ...]:
    """Names of the shipped specs, or of what a folder of them (`targets`) holds."""
    place = resources.files("dsv41c.specs").joinpath(folder)
    return tuple(sorted(item.name.removesuffix(".yaml") for item in place.iterdir() if item.name.endswith(".yaml")))


def find(ref: str, stdin: Stdin | None = None, folder: str = "") -> Origin:
    """A spec (or, with folder `targets`, a target) by shipped name, path, or `-`. Raises UserFault."""
    if ref == "-":
        return Origin((stdin or read_stdin)(), "<stdin>", "<stdin>")
    if ref in shipped_names(folder):
        return _shipped(ref, folder)
    if _looks_like_a_path(ref):
        path = Path(ref)
        try:
            return Origin(read_file(path, ref), ref, _identity(path), path.parent)
        except UserFault as fault:
            raise UserFault([with_hint(fault.diagnostics[0], ref, shipped_names(folder))]) from None
    what = "target" if folder else "spec"
    raise UserFault([_unknown(ref, what, shipped_names(folder), Span("<command line>"))])


def find_base(ref: str, span: Span, origin: Origin) -> Origin:
    """What `extends: REF` in a text means: a shipped spec, or a file beside or below it. Raises UserFault."""
    if ref in shipped_names():
        return _shipped(ref, "")
    if not ref.endswith((".yaml", ".yml")) and "/" not in ref and "\\" not in ref:
        raise UserFault([_unknown(ref, "spec", shipped_names(), span)])
    refused = _escape(ref, origin)
    if refused or origin.directory is None:
        message = f"`extends: {shown_key(ref)}` {refused or 'names a file, and this text has no folder'}"
        help_text = "extend a shipped spec by name, or a file in the same folder or below it"
        raise UserFault([Diagnostic("DSV222", message, span, facts=(("extends", ref),), help=help_text)])
    path = origin.directory / ref
    try:
        return Origin(read_file(path), str(path), _identity(path), path.parent)
    except UserFault as fault:
        help_text = "extend a shipped spec by name, or a file that exists and is readable"
        raise UserFault([Diagnostic("DSV117", fault.diagnostics[0].message, span, help=help_text)]) from None


def name_in_plan(origin: Origin, first: str) -> str:
    """What a plan calls a text, the same wherever its folder lies.

    A file has its own name; one that another file extends the path from that file's folder; characters that would
    break a line or that no UTF-8 has are escaped. `first` is the identity of the text that was asked for.
    """
    if origin.directory is None:
        return origin.file
    path, folder = Path(origin.identity), Path(first).parent
    inside = first != origin.identity and path.is_relative_to(folder)
    return escape(path.relative_to(folder).as_posix() if inside else PurePath(origin.file).name)


def _shipped(name: str, folder: str) -> Origin:
    shown = "/".join(part for part in ("specs", folder, f"{name}.yaml") if part)
    text = resources.files("dsv41c.specs").joinpath(folder, f"{name}.yaml").read_text(encoding="utf-8")
    return Origin(text, shown, f"shipped:{shown}")


def _looks_like_a_path(ref: str) -> bool:
    if "/" in ref or "\\" in ref or ref.endswith((".yaml", ".yml", ".json")):
        return True
    try:
        return bool(ref) and Path(ref).exists()
    except (OSError, ValueError):
        return False


def _identity(path: Path) -> str:
    try:
        return str(path.resolve())
    except (OSError, RuntimeError, ValueError):
        return str(path)


def _escape(ref: str, origin: Origin) -> str:
    """Why a path leaves the folder of the text that names it; empty if it does not."""
    if PurePosixPath(ref).is_absolute() or PureWindowsPath(ref).drive or ref.startswith(("\\", "~")):
        return "is an absolute path, expected one inside the folder of this file"
    if ".." in ref.replace("\\", "/").split("/"):
        return "leaves the folder of this file"
    if origin.directory is not None:
        folder, path = _identity(origin.directory), _identity(origin.directory / ref)
        if not Path(path).is_relative_to(folder):
            return "leaves the folder of this file through a link"
    return ""


def _unknown(ref: str, what: str, names: tuple[str, ...], span: Span) -> Diagnostic:
    near = difflib.get_close_matches(ref, names, 1, 0.5)
    hint = f"did you mean `{near[0]}`? " if near else ""
    if what == "spec" and ref in shipped_names("targets"):
        hint = f"`{ref}` is a target, laid over a spec by `--target {ref}`; "
    elif what == "target" and ref in shipped_names():
        hint = f"`{ref}` is a spec, not a machine; "
    return Diagnostic(
        "DSV220",
        f"no {what} named `{shown_key(ref)}`",
        span,
        facts=((f"shipped {what}s", ", ".join(names)),),
        help=f"{hint}give a shipped name, or a path (a file in this folder as `./NAME.yaml`)",
        fix=respelled(ref, names, span),
    )
