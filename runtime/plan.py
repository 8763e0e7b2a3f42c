"""Loads a plan folder: reads every file once, checks what it read, and compiles exactly that.

Nothing of a folder is imported: stage files are parsed, held against the few forms the templates produce, and executed
without builtins. Sources are given to `linecache`, so tracebacks and debuggers show the lines that ran.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv41c.diagnostics import Diagnostic, Span, UserFault, has_errors
from dsv41c.runtime.calls import RegionCall, calls_of
from dsv41c.runtime.manifest import Manifest, OpEntry, RegionEntry, identifier, read, sha256, weight_identifier
from dsv41c.runtime.plan_code import MAX_SOURCE_BYTES, Function, RefusedError, check_module

# The module of a plan's code, as frames say; no importable name, since what runs here came from a folder.
MODULE = "dsv41c plan"
_AGAIN = "compile the plan again: `dsv41c compile SPEC -o DIR`"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that can run: `functions[region id](kernels, weights, step, *reads) -> writes`."""

    folder: Path
    manifest: Manifest
    functions: Mapping[str, Callable[..., Any]]
    warnings: tuple[Diagnostic, ...] = ()


def load_plan(folder: Path | str, *, allow_edited: bool = False) -> Plan:
    """Load a plan folder. Raises `UserFault` with every finding: DSV801 to DSV804, DSV810, DSV811, DSV813, DSV814.

    `allow_edited` runs files whose hash is not the manifest's, with a warning (DSV812); their form is checked all the
    same.
    """
    folder = Path(folder)
    manifest = read(folder)
    found: list[Diagnostic] = []
    sources: dict[str, str] = {}
    edited: set[str] = set()
    for entry in manifest.files:
        data = _file(folder / entry.path, found)
        if data is None:
            continue
        if sha256(data) != entry.sha256:
            edited.add(entry.path)
            found.append(_edited(folder / entry.path, allow_edited))
        sources[entry.path] = data.decode("utf-8", "replace")
    functions: dict[str, Callable[..., Any]] = {}
    for stage in manifest.stages:
        if stage.file in sources:
            path, strict = folder / stage.file, stage.file not in edited
            regions = [region for region in manifest.regions if region.stage == stage.index]
            functions |= _stage(path, sources[stage.file], manifest, regions, strict, found)
    if has_errors(found):
        raise UserFault(found)
    return Plan(folder, manifest, functions, tuple(found))


def _file(path: Path, found: list[Diagnostic]) -> bytes | None:
    try:
        if not path.is_file():
            raise FileNotFoundError(2, "it is not there, or is no plain file")
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise OSError(27, f"it is larger than {MAX_SOURCE_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        text = f"`{path.name}` of the plan cannot be read: {error.strerror or error}"
        found.append(Diagnostic("DSV810", text, Span(str(path)), help=f"copy the whole folder, or {_AGAIN}"))
        return None


def _edited(path: Path, allowed: bool) -> Diagnostic:
    text = f"`{path.name}` is not the file that was compiled: its hash is not the manifest's"
    if allowed:
        help_text = f"its results say nothing about the spec; to be rid of the edit, {_AGAIN}"
        return Diagnostic("DSV812", text, Span(str(path)), help=help_text)
    return Diagnostic("DSV811", text, Span(str(path)), help=f"{_AGAIN}; or run your edit with `--allow-edited`")


# --- a stage file ---------------------------------------------------------------------------------------------------


def _stage(
    path: Path, source: str, manifest: Manifest, regions: list[RegionEntry], strict: bool, found: list[Diagnostic]
) -> dict[str, Callable[..., Any]]:
    """The functions of a stage file by region, or findings."""
    try:
        tree, functions = check_module(source)
    except RefusedError as refused:
        text = f"`{path.name}` is not code that a template produces: {refused}"
        found.append(Diagnostic("DSV813", text, Span(str(path), refused.line), help=_AGAIN))
        return {}
    ops = {op.id: op for op in manifest.ops}
    faults = [
        Diagnostic("DSV814", f"`{path.name}`: {text}", Span(str(path), line), help=_AGAIN)
        for line, text in _disagreements(functions, regions, ops, strict)
    ]
    found += faults
    if faults:
        return {}
    names: dict[str, Any] = {"__builtins__": {}, "__name__": MODULE}
    exec(compile(tree, str(path), "exec", dont_inherit=True), names)
    linecache.cache[str(path)] = (len(source), None, source.splitlines(keepends=True), str(path))
    return {region.id: names[region.function] for region in regions}


def _disagreements(
    functions: tuple[Function, ...], regions: list[RegionEntry], ops: Mapping[str, OpEntry], strict: bool
) -> Iterator[tuple[int, str]]:
    """Lines and sentences: where the functions are not the regions of the manifest."""
    by_name = {function.name: function for function in functions}
    if len(by_name) < len(functions):
        yield 1, "a function is defined twice"
    for region in regions:
        if region.function not in by_name:
            yield 1, f"function `{region.function}` of region `{region.id}` is missing"
    wanted = {region.function: region for region in regions}
    for function in functions:
        if function.name not in wanted:
            yield function.line, f"function `{function.name}` is no region of the manifest"
            continue
        region = wanted[function.name]
        for text in _differences(function, region, calls_of(region, ops), strict):
            yield function.line, f"`{function.name}` {text}"


def _differences(function: Function, region: RegionEntry, calls: list[RegionCall], strict: bool) -> Iterator[str]:
    ops = [op for call in calls for op in call.ops]
    layer = ops[0].layer
    reads = tuple(identifier(value, layer) for value in region.reads)
    if function.reads != reads:
        yield f"takes {', '.join(function.reads)[:300]}, the region reads {', '.join(reads)[:300]}"
    if function.results != len(region.writes):
        yield f"returns {function.results} values, the region writes {len(region.writes)}"
    unknown = function.weights - {weight_identifier(weight) for op in ops for weight in op.weights.values()}
    if unknown:
        yield f"uses weights that the region has not: {', '.join(sorted(unknown))[:300]}"
    found = [(call.kind, dict(call.attributes)) for call in function.calls]
    if strict and found != [(call.kind, call.attributes) for call in calls]:
        yield "does not call the ops of its region with their attributes"
