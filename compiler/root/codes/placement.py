"""Codes 5xx: stages, devices and memory."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = (
    Code(
        "DSV501",
        "stages-do-not-cover-the-layers",
        "error",
        "the stages leave out layers, or name layers that do not exist",
        """\
`placement.layer_ends` gives the exclusive upper bound of each stage, so the last stage ends at `model.n_layers`.
The usual cause is a placement made for another number of layers.

**Way out:** end the last stage at the number of layers.
""",
        bad="extends: toy\nplacement: {layer_ends: [7]}\n",
        good="extends: toy\nplacement: {layer_ends: [8]}\n",
    ),
    Code(
        "DSV502",
        "stages-out-of-order",
        "error",
        "a stage ends at or before the stage before it",
        """\
Stage i runs the layers from the end of stage i - 1 up to its own end. An end that does not grow makes a stage
empty, or would run layers twice or out of order. A *device* may come again in a later stage; layers may not.

**Way out:** write ascending ends.
""",
        bad="extends: toy\nplacement: {devices: ['cpu:0', 'cpu:1', 'cpu:2'], layer_ends: [4, 4, 8]}\n",
        good="extends: toy\nplacement: {devices: ['cpu:0', 'cpu:1', 'cpu:0'], layer_ends: [4, 6, 8]}\n",
    ),
    Code(
        "DSV503",
        "stages-and-devices-differ",
        "error",
        "`devices` and `layer_ends` have different lengths",
        """\
Each stage has one device: entry i of `placement.devices` runs the stage that ends at entry i of
`placement.layer_ends`.

**Way out:** give every stage its device. One device may run several stages.
""",
        bad="extends: toy\nplacement: {devices: ['cpu:0', 'cpu:1'], layer_ends: [8]}\n",
        good="extends: toy\nplacement: {devices: ['cpu:0', 'cpu:1'], layer_ends: [4, 8]}\n",
    ),
    Code(
        "DSV504",
        "device-families-mixed",
        "error",
        "the stages are on devices of different families",
        """\
A plan is compiled for one family of devices (`cpu`, `cuda`, `rocm`, `hpu`): kernels, capture rules and transfers
belong to a family, and no transfer between families is defined.

**Way out:** place all stages on devices of one family.
""",
        bad="extends: toy\nplacement: {devices: ['cpu:0', 'cuda:0'], layer_ends: [4, 8]}\n",
        good="extends: toy\nplacement: {devices: ['cuda:0', 'cuda:1'], layer_ends: [4, 8]}\n",
    ),
    Code(
        "DSV505",
        "read-across-stages",
        "error",
        "an op reads a value of another device, no transfer declared",
        """\
Shared state does not stop at a stage boundary: a layer may read compressed KV, index keys, a selection or candidate
blocks that a layer on another device made. Each such value has to be carried there by a `transfer` (what lives for
one step) or kept up to date in a `mirror` (session state). Ports that forget one read a buffer of their own that
nobody fills: shapes are right and the text is wrong.

The compiler derives all transfers, so this concerns graphs that were changed afterwards.

**Way out:** declare the transfer, or move the stage boundary.
""",
    ),
    Code(
        "DSV506",
        "state-carried-wrongly",
        "error",
        "a value crosses stages by the wrong sort of op, or must not cross at all",
        """\
What lives for one step (streams, pre-mix, selections, candidate blocks, token ids) is copied with the chunk:
`transfer`. Of compressed KV and index keys the other device keeps a `mirror` and gets the appended rows; copying
them whole at every step would cost the context each time. A window ring, an open group and a token history stay
with their layer. A copy is what it copies: it has its kind, shape and dtype, and its id with the stage behind it
(`topk@L28.S3`). One of another layer's value runs, and the text is wrong.

**Way out:** use the op that the kind of state asks for, or place its readers on its stage.
""",
    ),
    Code(
        "DSV507",
        "shards-uneven",
        "error",
        "widths that the processes of a stage share do not divide by their number",
        """\
With `placement.tensor_parallel: N` each of N processes has an N-th of the query heads, of the output groups, of the
inner width of every expert, and of the vocabulary's rows in the head. All have the same size, so that one plan serves
every process. Where weights are stored with a scale for each 32x32 block or each 32 columns, or inputs are rounded in
blocks of 32, a part is also a whole number of blocks: no scale belongs to two processes.

**Way out:** choose an N that divides every width; the finding lists some.
""",
        bad="extends: toy\nplacement: {tensor_parallel: 4}\n",
        good="extends: toy\nplacement: {tensor_parallel: 2}\n",
    ),
    Code(
        "DSV508",
        "part-read-as-whole",
        "error",
        "an op reads one shard's part of a sum as if it were the sum",
        """\
With `placement.tensor_parallel` above 1, an output projection and experts give one process's part of a sum. An
`all_reduce` of as many shards adds the parts up, those of routed experts and the shared one together. What reads a part
directly runs, with the right shapes, and every process goes on with other numbers.

The compiler puts the collectives in, so this concerns graphs that were changed afterwards.

**Way out:** read what the `all_reduce` writes.
""",
    ),
)
