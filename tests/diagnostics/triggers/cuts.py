"""What gives the codes of cuts, and the same mended."""

from dataclasses import replace
from pathlib import Path

from dsv41c.compiler.cut import cut
from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.runtime.synth import synth
from dsv41c.runtime.weights.cut import cut_checkpoint
from dsv41c.runtime.weights.headers import read_checkpoint

# Layer 4 selects for layer 5 alone, and uses the selection of layer 2 itself.
ELSEWHERE = (
    "layers.compress_ratios={0-1: 0, 2-5: 2, 6-7: 1}",
    "layers.kv_source_layers=[2, 6]",
    "layers.index_source_layers=[2, 4, 6]",
    "layers.candidate_source_layer=6",
    "layers.reads={4: {topk: 2}}",
)


def _cut(layers, experts=None, sets=()):
    def trigger(_):
        loaded = load("toy", sets=sets)
        assert loaded.spec is not None, loaded.diagnostics
        cut(loaded, layers, experts)

    return trigger


def _checkpoint(**changes):
    """The toy's first layer of a random checkpoint that is said to be something else."""

    def trigger(folder: Path):
        plan = compile_spec(load("toy")).manifest
        synth(plan, {}, folder / "whole")
        found = replace(read_checkpoint(folder / "whole"), **changes)
        cut_checkpoint(plan, found, folder / "cut", layers=[0], experts=8, files={})

    return trigger


TRIGGERS = {
    "DSV240": (_cut([0, 1, 3, 6]), _cut([0, 1, 2, 3, 5, 6])),
    "DSV241": (_cut([6, 7, 8]), _cut([5, 6, 7])),
    "DSV242": (_cut([0], 1), _cut([0], 2)),
    "DSV243": (_cut([2, 4], sets=ELSEWHERE), _cut([2, 4, 5], sets=ELSEWHERE)),
    "DSV754": (_checkpoint(files={"model.gguf": 0}), _checkpoint()),
}
