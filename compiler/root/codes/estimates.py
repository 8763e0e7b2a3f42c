"""Codes 83x: memory that a plan needs and a machine does not have. Each has a trigger in the tests."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = (
    Code(
        "DSV830",
        "does-not-fit",
        "error",
        "a plan needs more memory than a device or the host has",
        """\
`dsv41c estimate` adds up what a plan needs of each memory, from its manifest: weights as they are kept, pools of
session state, what graphs hand on, and what a step takes while it runs. Tables that are mapped or on disk are not
counted. `--device-memory` and `--host-memory` say what there is; a GPU's driver, its libraries and other processes
take some of that too, which nobody can know beforehand.

The largest item says what to change. Experts and other weights shrink with more stages (`placement`), global KV with
fewer sessions, a shorter context or `numerics.kv_cache: packed`, the work space with a smaller `runtime.prefill_chunk`,
engram tables with another `engram.storage`. On unified memory, moving tables to the host makes no room.

`run` says the same where memory ends while a plan's weights and state are put into it.

**Way out:** change what is largest, or ask `--fit context` or `--fit sessions` for the largest that fits.
""",
    ),
)
