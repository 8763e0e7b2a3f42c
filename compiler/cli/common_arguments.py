"""Arguments that several verbs take."""

from __future__ import annotations

import argparse

from dsv41c.compiler.cli.values import assignment


def spec(parser: argparse.ArgumentParser) -> None:
    """A spec, and what is laid over it."""
    parser.add_argument("spec", metavar="SPEC", help="a file, `-` for standard input, or the name of a shipped spec")
    overrides(parser)


def overrides(parser: argparse.ArgumentParser) -> None:
    """What is laid over a spec."""
    parser.add_argument("--target", metavar="T", help="placement, numerics and runtime of a machine: a file or a name")
    parser.add_argument(
        "--set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        dest="sets",
        type=assignment,
        help="override one value of the spec; may come again",
    )


def as_json(parser: argparse.ArgumentParser) -> None:
    """Whether the result is JSON."""
    parser.add_argument("--json", action="store_true", help="print the result, or what is wrong, as JSON")
