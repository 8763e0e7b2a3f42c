"""Arguments of the verbs that turn one file or folder into another: `import`, `cut`, `repack`, `synth`."""

from __future__ import annotations

import argparse

from dsv41c.compiler.cli.common_arguments import as_json, spec
from dsv41c.compiler.cli.values import count, layer_numbers, memory, path, positive

EXPERT_LAYOUTS = ("stacked", "gate_up", "interleaved", "separate")


def importing(parser: argparse.ArgumentParser) -> None:
    """Arguments of `import`."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a model's config.json in any official form, a GGUF file of it, or `-`"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="SPEC",
        type=path,
        default="-",
        help="file to write (default: standard output); one with other text is left alone",
    )
    parser.add_argument("--force", action="store_true", help="replace a file with other text, hand edits and all")
    as_json(parser)


def cut(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cut`."""
    spec(parser)
    parser.add_argument(
        "--layers", metavar="0,1,20-23", type=layer_numbers, required=True, help="layers to keep; they are renumbered"
    )
    parser.add_argument("--experts", metavar="N", type=positive, help="keep the first N routed experts (default: all)")
    parser.add_argument("--checkpoint", metavar="DIR", type=path, help="also write what is left of this checkpoint")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        type=path,
        default="-",
        help="file of the spec (default: standard output); with --checkpoint the folder of both, new or empty",
    )
    parser.add_argument("--force", action="store_true", help="replace a spec with other text")
    as_json(parser)


def repack(parser: argparse.ArgumentParser) -> None:
    """Arguments of `repack`."""
    parser.add_argument("plan", metavar="PLAN", type=path, help="a plan folder made by `compile`")
    parser.add_argument("--checkpoint", metavar="DIR", type=path, required=True, help="folder of the checkpoint")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=path, required=True, help="folder of the new one; new or empty"
    )
    parser.add_argument(
        "--experts",
        choices=EXPERT_LAYOUTS,
        default="stacked",
        help="experts of a layer: one tensor for each matrix (default), with gate and up in one or in rows that "
        "alternate, or one by one as the release has them",
    )
    parser.add_argument(
        "--tables",
        choices=("rows", "separate"),
        default="rows",
        help="engram tables: the scales of a row behind its codes (default), or in a tensor of their own",
    )
    parser.add_argument("--max-file", metavar="SIZE", type=memory, help="largest file (default: 4GiB)")
    parser.add_argument(
        "--no-check", action="store_true", help="do not read both again to compare every element before it appears"
    )
    as_json(parser)


def synth(parser: argparse.ArgumentParser) -> None:
    """Arguments of `synth`."""
    spec(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=path, required=True, help="folder of the checkpoint; new or empty"
    )
    parser.add_argument("--seed", metavar="N", type=count, default=0, help="seed of the weights (default: 0)")
    parser.add_argument("--max-bytes", metavar="N", type=positive, help="largest size to write (default: 8 GiB)")
    as_json(parser)
