"""Codes 15x: what was asked for, on the command line and in the environment."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = (
    Code(
        "DSV150",
        "malformed-selection",
        "error",
        "an item of `--select` is not of its grammar",
        """\
A selection is a list of items with commas between them: `layers.30`, `layers.20-29`, `layers.30.attn`, the id of an op
or a value (`layers.30.attn.attend`, `compress_kv@L20`), `kind:topk`, `device:cuda:1`. A `+` in front means what feeds
it, a `+` behind what it feeds, `++` the same all the way.

Quote the expression, so that the shell leaves it alone: `--select '+layers.30,compress_kv@L20+'`.
""",
    ),
    Code(
        "DSV151",
        "selection-of-nothing",
        "error",
        "an item of `--select` names nothing in the graph",
        """\
The item has the right form, but the graph has no such layer, op, value, kind or device. An empty picture would look
like an answer ("nobody reads it"), so it is refused.

`dsv41c graph SPEC --format text` lists every op and value by its id. Devices are those of the spec's `placement`; give
`--target` to draw the graph as it lies on another machine.
""",
    ),
    Code(
        "DSV152",
        "bad-setting",
        "error",
        "an environment variable has a value that it cannot have",
        """\
`dsv41c` reads these environment variables, once, and refuses a value it does not understand rather than go on with the
default:

- `DSV41C_COLOR`: `auto` (colour on a terminal), `always` or `never`; `NO_COLOR` set to anything means never.
- `DSV41C_DEBUG`: 0 to 2. 1 prints the time of every step; 2 also checks state in `run`, counts reads of state
  that is not the session's own (DSV848), and shows where in our code a fault was raised.
- `DSV41C_STRICT`: 1 runs a plan of any family on the CPU and refuses what its devices could not capture (`run`).
- `DSV41C_THREADS`: CPU threads of `run`, 1 or more.
- `DSV41C_VERIFY`: 1 runs the graph checks again after every pass of `compile`.

Where a run has several processes, `torchrun` sets `WORLD_SIZE`, `RANK`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`,
and they are held to the same.
""",
    ),
    Code(
        "DSV153",
        "unknown-setting",
        "warning",
        "an environment variable starts with `DSV41C_` and is none that is read",
        """\
It has no effect. Most often it is a misspelling; `dsv41c explain DSV152` lists the variables that are read.
""",
    ),
    Code(
        "DSV154",
        "cannot-write",
        "error",
        "a file or folder cannot be written, or holds something else",
        """\
The place given with `-o` cannot take the result: its parent folder does not exist, it is not writable, the disk is
full, or what is there was not written by `dsv41c` and is left alone. Nothing was written; a result is put in place
whole or not at all.

Make the parent folder first, or choose another place. `import` also leaves a file with another text alone, since it may
have been edited by hand; `--force` replaces it.
""",
    ),
    Code(
        "DSV156",
        "overlay-not-readable",
        "error",
        "a file given to `--overlay` is not of its format",
        """\
`--overlay` colours the rows of a picture by numbers from a JSON file:

```
{"format": "dsv41c.overlay/1.0",
 "title": "a decode step at batch 1",
 "measures": [{"name": "time", "unit": "us", "layers": {"0": 81.5, "1": 97.2, "embed": 3, "head": 60}}]}
```

There may be several measures, to choose from on the page. `layers` has finite numbers by layer, and by `embed` and
`head`, what is before and behind the layers. A layer that is left out is drawn without a number. What
`dsv41c run PLAN ... --compare reference --json` and `dsv41c bench PLAN --json` print is read as well.

**Way out**: the place in the message, and what is expected there.
""",
    ),
    Code(
        "DSV157",
        "overlay-of-other-layers",
        "error",
        "a file given to `--overlay` has numbers of layers that the graph lacks",
        """\
Numbers of layers that are not drawn would be left out in silence. Most often they were measured on another model.

**Way out**: numbers of the model that is drawn, or draw the model that they are of. A layer that is there and has no
number is no fault.
""",
    ),
    Code(
        "DSV158",
        "wrong-usage",
        "error",
        "the arguments of the command line do not fit",
        """\
A verb or an argument that does not exist, one that is missing, a value that an argument does not take, or two arguments
that do not go together. Nothing was done. It has a code for programs, where `--json` is among the arguments; without
that it is told as the usage of the verb and a sentence. The exit code is 2 in both cases.

**Way out**: `dsv41c VERB --help` says what the verb takes.
""",
    ),
)
