"""What gives the codes of repacked checkpoints, and the same mended."""

from dataclasses import replace
from pathlib import Path

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.runtime.repack import repack
from dsv41c.runtime.repack.check import compare
from dsv41c.runtime.synth import synth
from dsv41c.runtime.weights.headers import read_checkpoint
from dsv41c.runtime.weights.match import match


def _toy(folder: Path):
    plan = compile_spec(load("toy")).manifest
    synth(plan, {}, folder / "old")
    return plan, read_checkpoint(folder / "old")


def _of(**changes):
    def trigger(folder: Path):
        plan, found = _toy(folder)
        repack(plan, replace(found, **changes), folder / "new", check=False)

    return trigger


def _flipped(byte):
    """The last byte of the result's data with some bits changed."""

    def trigger(folder: Path):
        plan, found = _toy(folder)
        repack(plan, found, folder / "new", check=False)
        file = min((folder / "new").glob("*.safetensors"))
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ byte]))
        compare(found, match(plan, found), folder / "new", swapped=False)

    return trigger


TRIGGERS = {"DSV755": (_of(gguf="what such a file says"), _of()), "DSV756": (_flipped(1), _flipped(0))}
