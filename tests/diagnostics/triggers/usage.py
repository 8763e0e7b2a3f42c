"""What gives the codes of the command line and the environment, and the same mended."""

import json

from dsv41c.compiler.build import build
from dsv41c.compiler.cli.faults import wrong_usage
from dsv41c.compiler.cli.files import expect_writable
from dsv41c.compiler.cli.parsing import UsageError, parse
from dsv41c.compiler.draw.overlay import read_overlay
from dsv41c.compiler.select import select
from dsv41c.compiler.spec import load
from dsv41c.settings import read_settings


def _select(expression):
    loaded = load("toy")
    select(build(loaded.spec, loaded.spans), expression)


def _settings(**environment):
    return read_settings(environment).warnings


def _overlay(folder, **layers):
    """Numbers for the toy model's layers, from a file as `--overlay` reads it."""
    rows = {f"layers.{n}" for n in range(8)}
    measure = {"name": "time", "unit": "us", "layers": layers}
    read_overlay(
        json.dumps({"format": "dsv41c.overlay/1.0", "measures": [measure]}), str(folder / "numbers.json"), rows
    )
    return ()


def _parse(*argv):
    try:
        parse(argv)
    except UsageError as error:
        return [wrong_usage(error, argv)]
    return []


TRIGGERS = {
    "DSV150": (lambda _: _select("layers 3"), lambda _: _select("layers.3")),
    "DSV151": (lambda _: _select("topk@L3"), lambda _: _select("topk@L4")),
    "DSV152": (lambda _: _settings(DSV41C_DEBUG="much"), lambda _: _settings(DSV41C_DEBUG="1")),
    "DSV153": (lambda _: _settings(DSV41C_TREADS="2"), lambda _: _settings(DSV41C_THREADS="2")),
    "DSV154": (
        lambda folder: expect_writable(str(folder / "nowhere" / "plan")),
        lambda folder: expect_writable(str(folder / "plan")),
    ),
    "DSV156": (lambda folder: _overlay(folder, **{"3": "fast"}), lambda folder: _overlay(folder, **{"3": 1.5})),
    "DSV157": (lambda folder: _overlay(folder, **{"38": 1.5}), lambda folder: _overlay(folder, **{"3": 1.5})),
    "DSV158": (lambda _: _parse("validate", "--json"), lambda _: _parse("validate", "toy", "--json")),
}
