"""Reads `manifest.json` back. Anybody may have written it: nothing in it is believed before it is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from dsv41c import __version__
from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.manifest import FORMAT, MANIFEST, MAX_MANIFEST_BYTES, Entry, Manifest
from dsv41c.runtime.manifest_checks import check
from dsv41c.runtime.strict_json import NotJsonError, read_object

_Model = TypeVar("_Model", bound=Entry)
_MAX_FINDINGS = 20
_MAX_KEYS = 256
_FORMAT = re.compile(r"dsv41c\.plan/(\d{1,6})\.(\d{1,6})")
_AGAIN = "compile the plan again: `dsv41c compile SPEC -o DIR`"


def read(folder: Path) -> Manifest:
    """The manifest of a plan folder. Raises `UserFault`: DSV801 to DSV804."""
    path = folder / MANIFEST
    return parse(_bytes(path), str(path))


def listed_files(folder: Path) -> frozenset[str] | None:
    """The files that the plan in a folder says are its own, of any version; None where the folder holds no plan."""
    path = folder / MANIFEST
    try:
        content = load_json(_bytes(path), str(path))
    except UserFault:
        return None
    ours = isinstance(content.get("format"), str) and content["format"].startswith("dsv41c.plan/")
    entries = content.get("files")
    if not ours or not isinstance(entries, list):
        return None
    names = {entry.get("path") for entry in entries if isinstance(entry, dict)}
    return frozenset(name for name in (*names, MANIFEST) if isinstance(name, str))


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe or device has no end
            raise FileNotFoundError(2, "it is not there, or is no plain file")
        with path.open("rb") as file:
            return file.read(MAX_MANIFEST_BYTES + 1)  # `load_json` refuses what is larger
    except (OSError, ValueError) as error:
        message = f"`{path.name}` cannot be read: {getattr(error, 'strerror', None) or error}"
        raise _fault(str(path), message, "give the folder that `dsv41c compile SPEC -o FOLDER` made") from None


def parse(data: bytes, file: str) -> Manifest:
    """A manifest from its bytes. Raises `UserFault` with every finding; `file` is the name to show."""
    content = load_json(data, file)
    minor = _version(content, file)
    manifest = _validated(content, file, newer=minor > int(FORMAT.rpartition(".")[2]))
    faults = list(check(manifest))
    if faults:
        raise UserFault(_shortened([Diagnostic("DSV804", text, Span(file), help=_AGAIN) for text in faults], file))
    return manifest


def load_json(data: bytes, file: str) -> dict[str, Any]:
    """A JSON object, strictly: UTF-8, no key twice, no NaN, no endless nesting. Raises `UserFault` (DSV801)."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise _fault(file, f"the manifest is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        return read_object(data)
    except NotJsonError as error:
        raise _fault(file, f"the manifest {error}", line=error.line, column=error.column) from None


def _version(content: Mapping[str, Any], file: str) -> int:
    """The minor version. Raises `UserFault` (DSV802) where the major one is not ours."""
    found = content.get("format")
    match = _FORMAT.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise _fault(file, f"not a plan: `format` is {_short(found)}, expected `{FORMAT}`")
    if match[1] == _FORMAT.fullmatch(FORMAT)[1]:  # type: ignore[index]
        return int(match[2])
    tool = content.get("tool")
    by = f"dsv41c {_short(tool)[1:-1]}" if isinstance(tool, str) else "another version"
    message = f"the plan has format `{found}`, and dsv41c {__version__} reads `{FORMAT}`; it was made by {by}"
    help_text = f"run it with the version that made it, or {_AGAIN}"
    raise UserFault([Diagnostic("DSV802", message, Span(file), help=help_text)])


def _validated(content: dict[str, Any], file: str, *, newer: bool) -> Manifest:
    """The manifest of a JSON object. Keys that are unknown here are left out of a plan of a newer minor version."""
    faults: list[Diagnostic] = []
    reader = _Reader(file, newer, faults)
    lists = {name: _entry_model(name) for name in Manifest.model_fields}
    read: dict[str, Any] = dict(content)
    for name, model in lists.items():
        if model is not None and isinstance(content.get(name), list):
            read[name] = reader.entries(name, model, content[name])
    if faults:
        raise UserFault(_shortened(faults, file))
    manifest = reader.one(Manifest, read, ())
    if manifest is None:
        raise UserFault(_shortened(faults, file))
    return manifest


def _entry_model(field: str) -> type[Entry] | None:
    """The model of the entries of a field of `Manifest`, None where it is no list of entries."""
    arguments = get_args(Manifest.model_fields[field].annotation)
    model = arguments[0] if len(arguments) == 1 else None
    return model if isinstance(model, type) and issubclass(model, Entry) else None


class _Reader:
    """Validates entry by entry, so that a file of a million faults is given up after a few."""

    def __init__(self, file: str, newer: bool, faults: list[Diagnostic]) -> None:
        self.file = file
        self.newer = newer
        self.faults = faults

    def entries(self, name: str, model: type[Entry], items: list[Any]) -> list[Entry]:
        """The entries of a list, up to the first too many faults."""
        read = []
        for index, item in enumerate(items):
            entry = self.one(model, item, (name, index))
            if entry is not None:
                read.append(entry)
            elif len(self.faults) > _MAX_FINDINGS:
                break
        return read

    def one(self, model: type[_Model], item: Any, path: tuple[int | str, ...]) -> _Model | None:
        """A model from an object of the file; None, with faults, where it does not fit."""
        if model is not Manifest and isinstance(item, dict):
            wide = [key for key, value in item.items() if isinstance(value, dict) and len(value) > _MAX_KEYS]
            if wide:
                self.faults.append(
                    _malformed((*path, wide[0]), "", f"More than {_MAX_KEYS} keys", "an object", self.file)
                )
                return None
        try:
            return model.model_validate(item)
        except ValidationError as error:
            findings = error.errors(include_url=False, include_context=False)
        unknown = [finding["loc"] for finding in findings if finding["type"] == "extra_forbidden"]
        if self.newer and unknown:
            for place in unknown:
                _remove(item, place)
            return self.one(model, item, path)
        self.faults += [
            _malformed((*path, *finding["loc"]), finding["type"], finding["msg"], finding["input"], self.file)
            for finding in findings
        ]
        return None


def _remove(content: Any, path: tuple[int | str, ...]) -> None:
    for part in path[:-1]:
        content = content[part]
    del content[path[-1]]


def _malformed(path: tuple[int | str, ...], kind: str, message: str, value: object, file: str) -> Diagnostic:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path).lstrip(".")
    if kind == "extra_forbidden":
        text = f"the manifest has an unknown key `{place}`"
    elif kind == "missing":
        text = f"the manifest has no `{place}`"
    else:
        text = f"`{place}` is {_short(value)}: {message[:1].lower()}{message[1:]}"
    return Diagnostic("DSV803", text, Span(file), facts=(("path", place),), help=_AGAIN)


def _key(part: str) -> str:
    return part if part.isidentifier() and part.isascii() else _short(part)


def _short(value: object) -> str:
    """A value from the file, as a person may see it: one line, escaped, cut."""
    text = ascii(value)[:80]
    return f"{text}..." if len(text) == 80 else text


def _shortened(faults: list[Diagnostic], file: str) -> list[Diagnostic]:
    """The first findings; what is beyond is counted, since a broken file breaks everywhere."""
    if len(faults) <= _MAX_FINDINGS:
        return faults
    rest = Diagnostic(
        faults[0].code, f"{len(faults) - _MAX_FINDINGS} more findings like these", Span(file), help=_AGAIN
    )
    return [*faults[:_MAX_FINDINGS], rest]


def _fault(file: str, message: str, help_text: str = _AGAIN, line: int = 1, column: int = 1) -> UserFault:
    return UserFault([Diagnostic("DSV801", message, Span(file, line, column), help=help_text)])
