"""Codes 80x to 84x: plan folders. No spec shows them, so each has a trigger in the tests instead of examples here."""

from __future__ import annotations

from dsv41c.codes.code import Code
from dsv41c.diagnostics import Severity


def _code(code: str, name: str, summary: str, explanation: str, severity: Severity = "error") -> Code:
    return Code(code, name, severity, summary, explanation.lstrip())


_MANIFEST = (
    _code(
        "DSV801",
        "manifest-unreadable",
        "the folder has no manifest that can be read",
        """
A plan is a folder with `manifest.json`. Here there is none, or it is not strict JSON of a sane size: not UTF-8, a key
twice in one object, NaN, nested without end, cut short, or of another format altogether.

**Way out**: give the folder that `dsv41c compile SPEC -o FOLDER` made, or compile it again. A manifest is never worth
mending by hand.
""",
    ),
    _code(
        "DSV802",
        "plan-of-another-version",
        "the plan has a format that this version does not read",
        """
The number before the dot in `format: dsv41c.plan/1.0` changes when a plan means something else than before. Guessing
would run a model that is nearly right, which is worse than not running it. A higher number after the dot only adds
keys, and such plans are read.

**Way out**: run the plan with the version that the finding names, or compile it again with this one.
""",
    ),
    _code(
        "DSV803",
        "manifest-malformed",
        "an entry of the manifest has another form than the format says",
        """
A key is missing or unknown, or a value is of another type. The finding gives the path, as in `ops[3].reads`. Types are
strict: `"3"` is no number.

**Way out**: compile the plan again. If the compiler made it like this, it is a bug worth reporting.
""",
    ),
    _code(
        "DSV804",
        "manifest-inconsistent",
        "entries of the manifest contradict each other or the catalogue",
        """
The manifest names a value, op or weight that is not there, gives an op other ports than the catalogue does, lists a
file that no plan has, or asks for state of a size that its own numbers do not give. A runtime that went on would fail
in the middle of a request, or allocate what the machine does not have. `dsv41c graph` draws a plan from its
`spec.yaml`, so there the manifest has to hold the ops and devices that this compiles to.

**Way out**: compile the plan again.
""",
    ),
)
_FILES = (
    _code(
        "DSV810",
        "plan-file-missing",
        "a file that the manifest lists cannot be read",
        """
The manifest lists every file of the folder with its hash. One is missing, is not a plain file or is not text, so the
plan was copied in part.

**Way out**: copy the whole folder, or compile the plan again.
""",
    ),
    _code(
        "DSV811",
        "plan-edited",
        "a file of the plan is not the one that was compiled",
        """
The file's SHA-256 is not the one in the manifest. Hashes find accidents: a half-finished copy, an editor, a changed
line ending. They are no protection against somebody who also changes the manifest; that is what DSV813 is for.

**Way out**: compile the plan again, or pass `--allow-edited` if the edit is yours and you want to run it. To draw an
edited `spec.yaml`, give the file in place of the folder.
""",
    ),
    _code(
        "DSV812",
        "plan-edited-allowed",
        "an edited file of the plan runs because it was allowed",
        """
The file's SHA-256 is not the one in the manifest, and `--allow-edited` was given. What runs is not what the spec says,
so results say nothing about the spec. The forms of code are checked all the same (DSV813).
""",
        "warning",
    ),
    _code(
        "DSV813",
        "plan-code-refused",
        "a stage file holds code of a form that no template produces",
        """
A stage file has functions of straight-line kernel calls and nothing else: `name = kernels.op(name, weights.name,
key=literal)` and a `return`. Imports, attributes, other calls, loops, comprehensions, decorators, defaults and so on
are refused before anything is executed, with and without `--allow-edited`, whether the hash is right or not. A plan
folder is data from somewhere; this is what keeps it from being a program.

**Way out**: write the experiment as calls of kernels, or put new arithmetic into a kernel of your own installation.
""",
    ),
    _code(
        "DSV814",
        "plan-code-differs",
        "a stage file and the manifest disagree",
        """
The functions of a stage file are the regions of the manifest, with the parameters that the region reads, and unless
the file was edited with leave their calls are the region's ops with their attributes. Here a function is missing or
too many, has other parameters, or calls something else.

**Way out**: compile the plan again.
""",
    ),
)
_WRITING = (
    _code(
        "DSV820",
        "not-a-plan-folder",
        "the output folder holds something that is not a plan",
        """
A compile replaces the whole folder. This one exists, is not empty, and has no manifest of a plan, so what is in it
would be lost.

**Way out**: name a folder that does not exist yet, or one that holds a plan.
""",
    ),
    _code(
        "DSV821",
        "foreign-files-in-plan",
        "the output folder holds a plan and other files",
        """
A compile replaces the whole folder, and this one holds files that the plan in it does not list. They would be lost.

**Way out**: move them elsewhere, or name another folder.
""",
    ),
    _code(
        "DSV822",
        "plan-not-written",
        "the plan cannot be written there",
        """
The system refused to make or rename the folder: no permission, no room, no folder to hold it. The plan is written
beside its place first and renamed when it is whole, so nothing is left half done and an older plan is still there.

**Way out**: choose a folder that you may write, on a disk with room.
""",
    ),
)

CODES: tuple[Code, ...] = (*_MANIFEST, *_FILES, *_WRITING)
