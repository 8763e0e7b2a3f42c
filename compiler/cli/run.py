"""`run`: a plan on a checkpoint; text or token ids in, the same out."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import FAILED, show
from dsv41c.compiler.cli.files import expect_plan, expect_writable, read_text
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.diagnostics import UserFault, has_errors
from dsv41c.words import counted

if TYPE_CHECKING:
    from dsv41c.runtime.compare import Comparison, Layer
    from dsv41c.runtime.run import Prompt, RunOptions, RunResult

FORMAT = "dsv41c.run/1.0"
# The parts of a run that come before its first token, as a person calls them. Later ones would break the text.
_PARTS = {"load": "loading the weights", "prefill": "reading the prompt"}


def work(arguments: Namespace, console: Console) -> int:
    """Run it. The result is the generated text, or the generated ids where ids were given."""
    if arguments.until is not None and arguments.compare is None:
        raise UsageError("`--until` says where a comparison stops; give `--compare reference` with it")
    if arguments.top_p is not None and not arguments.temperature:
        raise UsageError("`--top-p` does nothing at temperature 0, the default; give `--temperature T` with it")
    expect_plan(arguments.plan)
    for path in (arguments.logits_out, arguments.states_out):
        if path is not None:
            expect_writable(path)
    limit_threads(console)
    with console.step("import the runtime"):
        from dsv41c.runtime.plan import load_plan
        from dsv41c.runtime.run import run_plan
        from dsv41c.runtime.stages.world import joined, processes
    if arguments.check_finite and console.settings.strict:
        console.say("with `--check-finite` nothing is captured, so DSV41C_STRICT only says that the CPU runs the plan")
    plan = load_plan(Path(arguments.plan), allow_edited=arguments.allow_edited)
    show(console, plan.warnings)
    options, checkpoint, prompt = _options(arguments, console), Path(arguments.checkpoint), _prompt(arguments)
    _expect_model(Path(arguments.plan), checkpoint, console)
    if processes() > 1:
        if options.states_out is not None or options.compare:
            raise UsageError("`--states-out` and `--compare` look at every stage; run the plan in one process for them")
        with joined(plan.manifest, strict=options.strict) as world:
            if world.rank:  # the first process speaks for all
                result = run_plan(plan, checkpoint, prompt, options, world=world)
                return _told_foreign(console, result)  # of its own stages
            return _run(arguments, console, partial(run_plan, plan, checkpoint, prompt, options, world=world))
    return _run(arguments, console, partial(run_plan, plan, checkpoint, prompt, options))


def _expect_model(plan: Path, checkpoint: Path, console: Console) -> None:
    """Tell where a checkpoint says of its model what the plan's spec does not; raise it where that is an error."""
    from dsv41c.compiler.importing import other_model
    from dsv41c.compiler.spec import load
    from dsv41c.runtime.weights.gguf.files import is_gguf
    from dsv41c.runtime.weights.headers import read_checkpoint

    if not is_gguf(checkpoint) and not (checkpoint / "config.json").is_file():
        return
    spec, found = load(str(plan / "spec.yaml")).spec, read_checkpoint(checkpoint)
    if spec is None or has_errors(found.diagnostics):  # loading tells
        return
    findings = other_model(spec, found)
    if has_errors(findings):
        raise UserFault(findings)
    if os.environ.get("RANK", "0") == "0":  # the first process speaks for all
        show(console, findings)


def _run(arguments: Namespace, console: Console, run: Callable[..., RunResult]) -> int:
    streams = _is_text(arguments) and not arguments.json
    result = run(on_text=console.result if streams else None, on_part=_announce(console))
    _tell(arguments, console, result)
    differs = result.comparison is not None and result.comparison.first is not None
    return max(FAILED if differs else 0, _told_foreign(console, result))


def _told_foreign(console: Console, result: RunResult) -> int:
    """The exit code, once what was found of other sessions' state is told."""
    from dsv41c.report import render

    if result.foreign:
        console.say(render(result.foreign, {}, color=console.colored(sys.stderr)).rstrip("\n"))
    return FAILED if result.foreign else 0


def _options(arguments: Namespace, console: Console) -> RunOptions:
    from dsv41c.runtime.run import RunOptions

    return RunOptions(
        n=arguments.count,
        temperature=arguments.temperature,
        top_p=1.0 if arguments.top_p is None else arguments.top_p,
        seed=arguments.seed,
        chunk=arguments.chunk,
        logits_out=_path(arguments.logits_out),
        states_out=_path(arguments.states_out),
        compare=arguments.compare is not None,
        until=arguments.until,
        debug=console.settings.debug,
        check_finite=arguments.check_finite,
        strict=console.settings.strict,
        tail=arguments.tail,
    )


def _announce(console: Console) -> Callable[[str], None] | None:
    """On a terminal, what takes a while before the first token, as it begins."""
    if not sys.stderr.isatty():
        return None

    def announce(part: str) -> None:
        if part in _PARTS:
            console.say(f"{_PARTS[part]} ...")

    return announce


def limit_threads(console: Console) -> None:
    """Torch takes these from the environment when it is first imported.

    Waiting threads sleep: spinning is no faster here and slows small models tenfold where the cores do other work too.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if os.environ.get("WORLD_SIZE", "1") != "1":  # of processes that go, the run tells itself
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if console.settings.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(console.settings.threads)
        os.environ["MKL_NUM_THREADS"] = str(console.settings.threads)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _is_text(arguments: Namespace) -> bool:
    return arguments.prompt is not None or arguments.chat is not None


def _prompt(arguments: Namespace) -> Prompt:
    from dsv41c.runtime.run import Prompt, read_ids

    if arguments.ids is not None:
        return Prompt(ids=read_ids(arguments.ids, "--ids"))
    if arguments.ids_file is not None:
        return Prompt(ids=read_ids(read_text(arguments.ids_file), arguments.ids_file))
    if arguments.chat is not None:
        return Prompt(chat=read_text("-") if arguments.chat == "-" else arguments.chat)
    return Prompt(text=read_text("-") if arguments.prompt == "-" else arguments.prompt)


def _tell(arguments: Namespace, console: Console, result: RunResult) -> None:
    """The result, where it was not told while it grew, and the talk about it."""
    if arguments.json:
        console.result(json.dumps(_data(result), ensure_ascii=False) + "\n")
    elif _is_text(arguments):
        console.result("\n" if result.ids else "")
    elif result.ids:
        console.result(",".join(map(str, result.ids)) + "\n")
    if result.seed is not None:
        console.say(f"seed {result.seed}")
    console.say(_speeds(result))
    if console.settings.debug and result.row_cache is not None:
        found = result.row_cache
        console.say(f"debug: {counted(found.hits + found.misses, 'engram row')} looked up, {found.hits:,} in the cache")
    if result.comparison is not None:
        console.say(_compared(result.comparison))
        if not arguments.json:
            show(console, result.comparison.diagnostics)


def _data(result: RunResult) -> dict[str, object]:
    data: dict[str, object] = {
        "format": FORMAT,
        "prompt_ids": result.prompt_ids,
        "ids": result.ids,
        "text": result.text,
        "finish": result.finish,
        "seed": result.seed,
    }
    if result.comparison is not None:
        first = result.comparison.first
        outside = None if first is None else asdict(first)
        if outside is not None and not isfinite(outside["distance"]):
            outside["distance"] = None  # JSON has no infinity
        data["comparison"] = {
            "values": result.comparison.values,
            "steps": result.comparison.steps,
            "first_outside": outside,
            "layers": {name: _layer(layer) for name, layer in result.comparison.layers.items()},
        }
    return data


def _layer(layer: Layer) -> dict[str, object]:
    """A layer of a comparison; the distance is null where nothing can be measured: another shape, or no number."""
    far = layer.farthest
    known = far.distance if isfinite(far.distance) else None
    return {"distance": known, "value": far.value, "values": layer.values, "outside": layer.outside}


def _speeds(result: RunResult) -> str:
    seconds = result.timings
    parts = [f"loaded in {seconds.get('load', 0.0):.2f} s"]
    parts.append(f"{counted(len(result.prompt_ids), 'token')} read in {seconds.get('prefill', 0.0):.2f} s")
    fed = len(result.ids) - 1
    if fed > 0 and seconds.get("decode"):
        parts.append(f"{len(result.ids)} written, {fed / seconds['decode']:.1f} a second")
    return "; ".join(parts)


def _compared(comparison: Comparison) -> str:
    counts = f"compared {counted(comparison.values, 'value')} in {counted(comparison.steps, 'step')}"
    if comparison.first is not None:
        return f"{counts}: `{comparison.first.value}` is the first outside its bound"
    worst = comparison.worst
    farthest = f"; the farthest is `{worst.value}`, {worst.distance:.1e} of {worst.bound:.1e}" if worst else ""
    return f"{counts}: all within their bounds{farthest}"
