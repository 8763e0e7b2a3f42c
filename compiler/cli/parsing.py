"""What the command line accepts: verbs, arguments, and what is said of those that do not fit. No work is done here.

This module is what `--help` pays for, so it imports nothing outside the standard library.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NoReturn

from dsv41c import __version__
from dsv41c.compiler.cli import writing_arguments
from dsv41c.compiler.cli.common_arguments import as_json, overrides, spec
from dsv41c.compiler.cli.values import (
    cell,
    count,
    fraction,
    kinds,
    memory,
    nearest,
    path,
    positive,
    prefill,
    words,
)
from dsv41c.compiler.cli.verbs import VERBS, Verb

TAILS = ("exact", "every", "bounded")
DIAGNOSTIC_FORMATS = ("text", "concise", "json", "sarif", "github")
GRAPH_FORMATS = ("text", "dot", "mermaid", "json", "html", "svg")
EXIT_CODES = """exit codes:
  0 done   1 the input has errors, or a check or comparison failed   2 usage or environment
  101 a bug in dsv41c   130 interrupted"""


class UsageError(Exception):
    """Arguments that do not fit; `usage` is the verb's usage line."""

    def __init__(self, message: str, usage: str = "") -> None:
        self.usage = usage
        super().__init__(message)


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line, `verb` among them. Raises `UsageError`; `SystemExit` after help or version."""
    arguments = list(argv)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    named = next((word for word in arguments if not word.startswith("-")), None)
    if named is not None and named not in VERBS:
        raise UsageError(nearest(f"`{named}` is not a verb", named, list(VERBS)), "usage: dsv41c VERB ...\n")
    parser, verbs = _parsers()
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        verb = verbs[known.verb]
        options = [option for action in verb._actions for option in action.option_strings]
        raise UsageError(
            nearest(f"`{unknown[0]}` is not an argument of `{known.verb}`", unknown[0], options), verb.format_usage()
        )
    return known


def wants_json(argv: Sequence[str]) -> bool:
    """Whether arguments that need not fit ask for JSON."""
    words = list(argv)[: list(argv).index("--")] if "--" in argv else list(argv)
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words)


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        "dsv41c",
        description="Compile DeepSeek-V4.1-class models from YAML specs to device plans.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dsv41c {__version__}")
    adding = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    verbs: dict[str, _Parser] = {}
    for verb in VERBS.values():
        verbs[verb.name] = _verb_parser(adding, verb)
    return parser, verbs


def _verb_parser(adding: argparse._SubParsersAction[_Parser], verb: Verb) -> _Parser:
    parser = adding.add_parser(
        verb.name,
        help=verb.summary,
        description=f"{verb.summary}.",
        epilog=f"example: dsv41c {verb.example}",
        allow_abbrev=False,
    )
    parser.set_defaults(format=None)
    _ARGUMENTS[verb.name](parser)
    parser.add_argument("--color", choices=("auto", "always", "never"), help="colour of text (default: on a terminal)")
    return parser


# --- arguments of each verb -------------------------------------------------------------------------------------------


def _validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", metavar="SPEC", nargs="+", help="files, `-`, or names of shipped specs")
    overrides(parser)
    parser.add_argument(
        "--checkpoint", metavar="DIR", type=path, help="also match the weights, from the files' headers alone"
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="mend spelling, order, quotes and the like: prints a diff, for `patch -p0`, and changes nothing",
    )
    parser.add_argument("--write", action="store_true", help="with --fix: change the files, then say what is left")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", choices=DIAGNOSTIC_FORMATS, default="text", help="form of the report (default: text)")
    form.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")


def _compile(parser: argparse.ArgumentParser) -> None:
    spec(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=path, help="folder of the plan; an older plan there is replaced"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if DIR does not hold this very plan"
    )
    parser.add_argument("--dry-run", action="store_true", help="write nothing; list what would be written")
    as_json(parser)


def _graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec", metavar="SPEC", help="a file, `-`, the name of a shipped spec, or a plan folder made by `compile`"
    )
    overrides(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=GRAPH_FORMATS,
        default="text",
        help="text (default), dot, mermaid, json, html (a page to look around in) or svg",
    )
    form.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument(
        "--select",
        metavar="EXPR",
        help="what to show: `layers.30`, `+layers.30` (what it reads), "
        "`compress_kv@L20+` (who reads it), `kind:topk`, `device:cuda:1`, with commas",
    )
    parser.add_argument(
        "--level",
        choices=("layer", "op"),
        help="layers, or every op and value (default: op for text and json, layer for the others)",
    )
    parser.add_argument(
        "--focus",
        metavar="THING",
        help="begin with a layer, a value or an op (html, svg); in other formats, draw what is around it",
    )
    parser.add_argument(
        "--depth",
        metavar="N",
        type=count,
        help="draw only what is within N steps of --focus or --select, upstream and downstream (default: all in html "
        "and svg, 1 around a --focus elsewhere)",
    )
    parser.add_argument(
        "--compare",
        metavar="OTHER",
        help="what is different from OTHER (a spec, as it stands, or a plan): added, removed, moved, re-sourced, "
        "changed; for text, json, html and svg",
    )
    parser.add_argument(
        "--overlay",
        metavar="FILE",
        type=path,
        help="colour layers by the numbers in a JSON file, of `run --compare reference --json` or of `bench --json`, "
        "or by `bytes`, what they take; for html and svg",
    )
    parser.add_argument("--hide", metavar="KINDS", type=kinds, default=(), help="leave out states of these kinds")
    parser.add_argument(
        "-o", "--output", metavar="F", type=path, default="-", help="file to write (default: standard output)"
    )


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", type=path, help="a plan folder made by `compile`")
    parser.add_argument("--checkpoint", metavar="DIR", type=path, required=True, help="a folder, or a GGUF file")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="text to go on from; `-` reads it from standard input")
    prompt.add_argument("--chat", metavar="TEXT", help="a user's message, in the official chat format")
    prompt.add_argument("--ids", metavar="1,2,3", help="token ids as they are")
    prompt.add_argument("--ids-file", metavar="F", help="a file of token ids, or `-`")
    parser.add_argument(
        "-n", metavar="N", type=count, default=32, dest="count", help="tokens to generate (default: 32)"
    )
    parser.add_argument("--temperature", metavar="T", type=fraction(1000.0), default=0.0, help="0 (default) is greedy")
    parser.add_argument("--top-p", metavar="P", type=fraction(1.0), help="sample from the likeliest P (default: 1)")
    parser.add_argument("--seed", metavar="S", type=count, help="seed of sampling (default: a new one, which is told)")
    parser.add_argument("--chunk", metavar="N", type=positive, help="feed the prompt in pieces of N tokens")
    parser.add_argument(
        "--tail",
        choices=TAILS,
        default="exact",
        help="rows of the prompt to compute: `exact` (default), those that the next token and the state after it need; "
        "`every` row; `bounded`, no more than a window's in the last layers, which is an approximation",
    )
    parser.add_argument("--logits-out", metavar="F", type=path, help="write `logits` of every position as safetensors")
    parser.add_argument("--states-out", metavar="F", type=path, help="write every layer's states as safetensors")
    parser.add_argument("--compare", choices=("reference",), help="compare every value with the reference kernels'")
    parser.add_argument(
        "--check-finite", action="store_true", help="stop where a value is first NaN or infinite, and name the op"
    )
    parser.add_argument("--until", metavar="VALUE", help="with --compare: stop after this value")
    parser.add_argument("--allow-edited", action="store_true", help="run a changed plan, with a warning")
    as_json(parser)


def _bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", type=path, help="a plan folder made by `compile`")
    parser.add_argument(
        "--weights", metavar="W", type=path, default="random", help="`random` (default), or a checkpoint's folder"
    )
    parser.add_argument(
        "--stored-experts", metavar="N", type=positive, help="random weights of N experts a layer, behind a whole gate"
    )
    parser.add_argument("--batch", metavar="B", type=positive, help="sessions of a step (default: 1)")
    parser.add_argument("--context", metavar="N", type=positive, help="tokens of each session (default: 1024)")
    parser.add_argument(
        "--cell",
        metavar="batch=B,context=N",
        action="append",
        default=[],
        dest="cells",
        type=cell,
        help="the two together; may come again, all cells share the weights",
    )
    parser.add_argument(
        "--prefill",
        metavar="N[:KIND]",
        action="append",
        default=[],
        type=prefill,
        help="also read a prompt of N tokens, with the exact tail and with every row; or of KIND `tail`, `every` "
        "or `bounded` alone",
    )
    parser.add_argument("--steps", metavar="K", type=positive, default=50, help="steps of a turn (default: 50)")
    parser.add_argument("--rounds", metavar="R", type=positive, default=7, help="rounds of turns (default: 7)")
    parser.add_argument("--arms", metavar="A,B", type=words, help="of layer, all, eager, torch (default: all of them)")
    parser.add_argument(
        "--against",
        metavar="PLAN",
        type=path,
        help="of a plan on several devices: run the same by turns on a plan of the same model on one device",
    )
    parser.add_argument("--seed", metavar="S", type=count, default=0, help="seed of weights and ids (default: 0)")
    parser.add_argument("--profile", action="store_true", help="also list the kernels of the first arm's step by time")
    parser.add_argument("--budget", metavar="SECONDS", type=positive, help="begin nothing new after so long")
    parser.add_argument("--label", metavar="TEXT", help="a text to keep with the result")
    parser.add_argument("--allow-edited", action="store_true", help="run a changed plan, with a warning")
    as_json(parser)


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", metavar="CODE", nargs="?", help="a code such as DSV301; without it, all are listed")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the result, or what is wrong, as JSON")
    form.add_argument("--schema", action="store_true", help="print the JSON Schema of specs, for editors")


def _targets(parser: argparse.ArgumentParser) -> None:
    as_json(parser)


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", type=path, help="a plan folder made by `compile`")
    for section, what in _SECTIONS.items():
        parser.add_argument(f"--{section}", action="store_true", help=what)
    as_json(parser)


_SECTIONS = {
    "states": "every pool of session state and every value that leaves a layer, with who makes and reads it",
    "boundaries": "what crosses each stage boundary, with who makes and reads it",
    "kernels": "every kernel with its ops, and the layers that call it",
    "regions": "every region with the graph that it is captured in",
    "weights": "every role of weights with its shape and encoding, and every constant",
}


def _estimate(parser: argparse.ArgumentParser) -> None:
    host = "memory of the host, such as 587GiB; a process is counted there for each device, or for each of its shards"
    spec(parser)
    parser.add_argument("--context", metavar="N", type=positive, help="tokens of a session (default: the spec's)")
    parser.add_argument("--sessions", metavar="N", type=positive, help="sessions at once (default: the spec's)")
    parser.add_argument(
        "--fit", choices=("context", "sessions"), help="find the largest context, or number of sessions, that fits"
    )
    parser.add_argument("--device-memory", metavar="SIZE", type=memory, help="memory of each device, such as 96GB")
    parser.add_argument("--host-memory", metavar="SIZE", type=memory, help=host)
    parser.add_argument("--unified", action="store_true", help="devices and host share one memory; give one size")
    as_json(parser)


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "validate": _validate,
    "compile": _compile,
    "graph": _graph,
    "run": _run,
    "bench": _bench,
    "explain": _explain,
    "targets": _targets,
    "import": writing_arguments.importing,
    "repack": writing_arguments.repack,
    "cut": writing_arguments.cut,
    "synth": writing_arguments.synth,
    "inspect": _inspect,
    "estimate": _estimate,
}


def overview() -> str:
    """What `dsv41c` alone prints."""
    width = max(map(len, VERBS))
    lines = [
        f"dsv41c {__version__}: YAML specs of DeepSeek-V4.1-class models, checked and compiled to device plans",
        "",
    ]
    lines += [f"  {verb.name:{width}}  {verb.summary}" for verb in VERBS.values()]
    lines += ["", "try: dsv41c compile toy -o toy.plan        more: dsv41c VERB --help"]
    return "\n".join(lines) + "\n"
