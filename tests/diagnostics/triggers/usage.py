"""What gives the codes of the command line and the environment, and the same mended."""

from dsv41c.compiler.build import build
from dsv41c.compiler.cli.files import expect_writable
from dsv41c.compiler.select import select
from dsv41c.compiler.spec import load
from dsv41c.settings import read_settings


def _select(expression):
    loaded = load("toy")
    select(build(loaded.spec, loaded.spans), expression)


def _settings(**environment):
    return read_settings(environment).warnings


TRIGGERS = {
    "DSV150": (lambda _: _select("layers 3"), lambda _: _select("layers.3")),
    "DSV151": (lambda _: _select("topk@L3"), lambda _: _select("topk@L4")),
    "DSV152": (lambda _: _settings(DSV41C_DEBUG="much"), lambda _: _settings(DSV41C_DEBUG="1")),
    "DSV153": (lambda _: _settings(DSV41C_TREADS="2"), lambda _: _settings(DSV41C_THREADS="2")),
    "DSV154": (
        lambda folder: expect_writable(str(folder / "nowhere" / "plan")),
        lambda folder: expect_writable(str(folder / "plan")),
    ),
}
