"""Compile: a loaded spec to the files of a plan, in memory, and from there to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.checks import check
from dsv41c.compiler.plan import folder as folders
from dsv41c.compiler.plan.describe import plan_model
from dsv41c.compiler.plan.limits import beyond_limits
from dsv41c.compiler.plan.lower import lower, missing_kernels, with_files
from dsv41c.compiler.plan.render import render
from dsv41c.compiler.spec.write import to_yaml
from dsv41c.diagnostics import Diagnostic, UserFault, has_errors
from dsv41c.runtime.manifest import MANIFEST, Manifest, sha256, to_text

if TYPE_CHECKING:
    from dsv41c.compiler.spec import Loaded


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled plan: `files` by name, `manifest.json` among them, and the warnings of its spec."""

    files: Mapping[str, str]
    manifest: Manifest
    warnings: tuple[Diagnostic, ...] = ()


def compile_spec(loaded: Loaded, *, dump: Path | None = None, verify: bool = False) -> Plan:
    """The plan of a spec. `dump` gets the program after each pass; `verify` checks the graph after each.

    Raises `UserFault` with every finding where the checks refuse the spec, or its devices lack a kernel (DSV601) or
    have one that does not take a value of it (DSV602).
    """
    found = check(loaded)
    if loaded.spec is None or has_errors(found):
        raise UserFault(found)
    # A plan calls files by names that do not depend on where they lie, a finding by the path that was given.
    spans = loaded.spans.named(loaded.names)
    program = passes.Program(loaded.spec, spans, build(loaded.spec, spans))
    program = passes.run(program, dump=dump, verify=verify)
    refused = [*missing_kernels(program), *beyond_limits(program)]
    if refused:
        raise UserFault((*found, *(_where_given(finding, loaded.names) for finding in refused)))
    spec_text = to_yaml(loaded.spec)
    manifest = lower(program, spec_text)
    model = plan_model(program, sha256(spec_text.encode()), manifest.memory, manifest.buffers)
    files = {**render(model), "spec.yaml": spec_text}
    manifest = with_files(manifest, files)
    return Plan({**files, MANIFEST: to_text(manifest)}, manifest, found)


def _where_given(finding: Diagnostic, names: Mapping[str, str]) -> Diagnostic:
    """The finding at the path that the user knows its file by."""
    given = {name: file for file, name in names.items()}
    if finding.span is None:
        return finding
    return replace(finding, span=replace(finding.span, file=given.get(finding.span.file, finding.span.file)))


def write_plan(plan: Plan, folder: Path) -> None:
    """Write a plan, whole or not at all, in the place of an older one. Raises `UserFault`: DSV820 to DSV822."""
    folders.write(plan.files, folder)
