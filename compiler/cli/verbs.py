"""The verbs: what each does in a line, an example, and the module that does the work, imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb. `module` is one of this package with `work(arguments, console) -> int`."""

    name: str
    module: str
    summary: str
    example: str


_REPACKED = "--checkpoint toy.checkpoint -o toy.repacked"
VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        verb.name: verb
        for verb in (
            Verb("validate", "validate", "check specs, and with --checkpoint their weights", "validate toy"),
            Verb("compile", "compile", "compile a spec to a plan folder", "compile toy -o toy.plan"),
            Verb("graph", "graph", "print or draw who writes and who reads what", "graph toy --select 'layers.7+'"),
            Verb("run", "run", "run a plan on a checkpoint", "run toy.plan --checkpoint toy.checkpoint --prompt hello"),
            Verb("bench", "bench", "time a plan against what has to move", "bench toy.plan --batch 4 --steps 20"),
            Verb("explain", "explain", "explain a diagnostic code, or list them", "explain DSV301"),
            Verb("targets", "targets", "list what has kernels on which family of devices", "targets --json"),
            Verb(
                "import", "importing", "turn a config.json or GGUF file into a spec", "import config.json -o model.yaml"
            ),
            Verb("repack", "repacking", "write a checkpoint anew in another layout", f"repack toy.plan {_REPACKED}"),
            Verb("cut", "cutting", "keep some layers, sources and all", "cut toy --layers 0-3 -o small.yaml"),
            Verb("synth", "synth", "write a random checkpoint of a spec", "synth toy -o toy.checkpoint"),
            Verb("inspect", "inspect", "summarise a plan folder", "inspect toy.plan"),
            Verb("estimate", "estimate", "say what memory a plan needs", "estimate toy --host-memory 16GB"),
        )
    }
)
