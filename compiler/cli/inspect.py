"""`inspect`: what a plan folder holds: an overview, or one or more of its sections in full.

Keys of the JSON, `dsv41c.inspect/1.1` (a minor version may add some); bytes are exact, layers and stages are numbers:

- `name`, `family`, `numerics`, `layers`, `ops`, `sessions`, `max_context`, `tensor_parallel`, `memory` by device, and
  counts and sums: `regions`, `weights`, `weight_bytes`, `state`, `transfers`, `transfer_bytes_per_token`,
  `collective_bytes_per_token`;
- `findings`: what is wrong with the files beside the manifest, as diagnostics;
- `stages`: the manifest's, with `ops`, `regions`, `weight_bytes` (kept, without tables), `state_bytes` (a session's);
- `states`: `held`, every pool of session state, and `step`, every value of a step: `id`, `kind`, `layer`, `shape`,
  `dtype`, `stage`, `device`, `producers`, `readers` (ops), `bytes_per_token`; of pools also `bytes_per_session` (at
  `max_context`), `bytes` of all slots, and `mirror`: a copy of another stage's. `kinds`: the same summed, with `scope`,
  `count`, `layers`, `stages`, `devices`; of step values `smallest_per_token` and `largest_per_token`;
- `boundaries`: `from_stage`, `to_stage`, their devices `from` and `to`, `layer` (the first behind), `bytes_per_token`,
  and `values`: `value`, `arrives_as`, `kind`, `how` (`chunk`: with the tokens; `mirror`: appended rows of state),
  `producer` (an op, null for the token ids), `layers` that read it behind the boundary, `ops` outside of layers that
  do, `passed_on` (to these stages), `bytes_per_token`;
- `kernels`: `kernel`, `native`, `calls` of a step, `ops` (how many), `op_kinds`, `layers`, `outside` (other ops);
- `capture`: `capture` (what the plan says), `captured` (whether its devices do that), `graphs_per_step`, `buckets`,
  `contexts`, `graphs_in_all`, `graphs` of a step (`stage`, `first` and `last` region, `regions`, `ops`, `calls`,
  `rows_from_host`), `regions` (`id`, `function`, `stage`, `graph`, `ops`, `calls`, `tail_rows`, `span`);
- `weight_table`: `groups`, `encodings` (`stored`, `accepted`, `dtype` as kept) and `roles` (`role`, `group`, `name`,
  `layers`, `shape`, `stored`, `accepted`, `dtype`, `split`), each with `tensors`, `parameters`, `bytes` as stored and
  `kept_bytes`, and the sums of these four; `constants`: `id`, `kind`, `bytes`.

With options: `name`, `findings` and the sections that they ask for.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import FAILED, show
from dsv41c.compiler.cli.files import expect_plan
from dsv41c.diagnostics import Diagnostic, UserFault, has_errors
from dsv41c.words import counted, joined

if TYPE_CHECKING:
    from dsv41c.runtime.manifest import Manifest

FORMAT = "dsv41c.inspect/1.1"
# The sections that an option asks for, with their keys in the JSON.
SECTIONS = {
    "states": "states",
    "boundaries": "boundaries",
    "kernels": "kernels",
    "regions": "capture",
    "weights": "weight_table",
}


def work(arguments: Namespace, console: Console) -> int:
    """Print the plan's overview or sections; 1 where its files are not what the manifest says."""
    from dsv41c.runtime.manifest_text import read

    expect_plan(arguments.plan)
    folder = Path(arguments.plan)
    manifest = read(folder)
    findings = _findings(folder)
    wanted = [section for section in SECTIONS if getattr(arguments, section)]
    if arguments.json:
        console.result(_json(manifest, wanted, findings))
    else:
        _print(console, manifest, wanted)
        show(console, findings)
    return FAILED if has_errors(findings) else 0


def _findings(folder: Path) -> Sequence[Diagnostic]:
    """What is wrong with the files of a plan whose manifest can be read."""
    from dsv41c.runtime.plan import load_plan

    try:
        return load_plan(folder, allow_edited=True).warnings
    except UserFault as fault:
        return tuple(fault.diagnostics)


def _sections() -> dict[str, ModuleType]:
    from dsv41c.compiler.inspect import boundaries, capture, kernels, states, weights

    return dict(zip(SECTIONS, (states, boundaries, kernels, capture, weights), strict=True))


def _json(manifest: Manifest, wanted: Sequence[str], findings: Sequence[Diagnostic]) -> str:
    from dsv41c.compiler.cli.summary import summary
    from dsv41c.compiler.inspect import stages
    from dsv41c.report import render

    data: dict[str, object] = {"name": manifest.name}
    if not wanted:
        data = {**summary(manifest), "stages": stages.data(manifest)}
        data["memory"] = [entry.model_dump() for entry in stages.held(manifest)]
    modules = _sections()
    data |= {SECTIONS[section]: modules[section].data(manifest) for section in wanted or SECTIONS}
    data |= {"format": FORMAT, "findings": json.loads(render(findings, {}, "json"))["diagnostics"]}
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# --- text -------------------------------------------------------------------------------------------------------------


def _print(console: Console, manifest: Manifest, wanted: Sequence[str]) -> None:
    from dsv41c.report.escape import escape

    modules = _sections()
    parts = [modules[section].lines(manifest) for section in wanted] or [part for part in _overview(manifest, modules)]
    blocks = ["\n".join(escape(line) for line in part) for part in parts]
    console.result("\n\n".join(block for block in blocks if block) + "\n")


def _overview(manifest: Manifest, modules: dict[str, ModuleType]) -> Iterator[Iterator[str]]:
    from dsv41c.compiler.inspect import stages

    yield _head(manifest)
    yield stages.lines(manifest)
    yield from (module.overview(manifest) for module in modules.values())
    yield iter([f"all of a section: {', '.join(f'--{section}' for section in SECTIONS)}"])


def _head(manifest: Manifest) -> Iterator[str]:
    model, runtime = manifest.model, manifest.runtime
    layers, stages = counted(model.n_layers, "layer"), counted(len(manifest.stages), "stage")
    yield f"{manifest.name} for {manifest.target.family}, {stages}"
    yield f"  model     {layers}, dim {model.dim:,}, {model.streams} streams, a vocabulary of {model.vocab_size:,}"
    yield "  numerics  " + ", ".join(f"{name} {value}" for name, value in manifest.numerics.model_dump().items())
    yield f"  sessions  {runtime.max_sessions:,} of up to {runtime.max_context:,} tokens"
    buckets = joined([f"{bucket:,}" for bucket in runtime.decode_buckets], "or")
    yield f"  steps     prompts in chunks of {runtime.prefill_chunk:,}, decode steps of {buckets} rows"
