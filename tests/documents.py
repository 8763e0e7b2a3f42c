"""Documents that tell the truth: their commands run, what they show is what comes out, their tables are made of data.

    python tests/documents.py [FILE.md ...]      # writes outputs and tables of the README and of examples/*.md anew

Blocks of a document, in order, in one folder: `bash` runs; `yaml` and `python` become the file that their first line
names; `diff` changes files. Behind `<!-- output -->` stands what the last bash block printed, between `<!-- table NAME
-->` and `<!-- end -->` a table of `TABLES`; a remark that begins with `not run` leaves a block out. Where a document
says `<!-- in a copy of the project -->`, the folder holds one, and its commands run that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dsv41c.codes import GROUPS
from dsv41c.kernels.catalog import STATE_KINDS, WEIGHT_ROLES
from dsv41c.kernels.encodings import ENCODINGS
from dsv41c.runtime.weights.encoding import weight_shape
from dsv41c.runtime.weights.gguf.families import FAMILIES, GLOBALS, LAYERS
from dsv41c.runtime.weights.gguf.types import TYPES
from dsv41c.runtime.weights.variants import DECLARATIONS, TRANSFORMS, VARIANTS, official_name, spelled

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "examples").glob("*.md")))
BLOCK = re.compile(r"(?:^<!-- (?P<remark>[^\n]*) -->\n\n?)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
TABLE = re.compile(r"(?<=^<!-- table )(?P<name>[\w ]+) -->\n.*?(?=^<!-- end -->$)", re.M | re.S)
COPY = "<!-- in a copy of the project -->"
FOLDERS = ("compiler", "kernels", "runtime", "specs", "templates")


def follow(text: str, place: Path) -> str:
    """The document as it should be: its commands run in a folder, their outputs put where it shows them."""
    environment = _environment(place, copied=COPY in text)
    output, parts, end = "", [], 0
    for match in BLOCK.finditer(text):
        remark, language, body = match["remark"] or "", match["language"], match["body"]
        if remark == "output":
            parts += [text[end : match.start("body")], output.rstrip("\n") + "\n"]
            end = match.end("body")
        elif language == "bash" and not remark.startswith("not run"):
            output = _run(body, place, environment)
        elif language in ("yaml", "python") and (name := re.match(r"# (\S+\.\w+)\n", body)):
            (place / name[1]).write_text(body)
        elif language == "diff":
            _change(body, place)
    return with_tables("".join([*parts, text[end:]]))


def with_tables(text: str) -> str:
    """The document with its tables as the project's data has them."""
    return TABLE.sub(lambda match: f"{match['name']} -->\n\n{TABLES[match['name']]()}\n", text)


def _run(body: str, place: Path, environment: dict[str, str]) -> str:
    command = ["bash", "-euo", "pipefail", "-c", body]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{body}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _environment(place: Path, *, copied: bool) -> dict[str, str]:
    """The one the tests run in, with its commands first; of a copy, with the copy's packages before all others."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("DSV41C_")}
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found["OMP_NUM_THREADS"] = "1"
    if copied:
        package = place / "site" / "dsv41c"
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, place / folder)
        package.mkdir(parents=True)
        for part in (*(place / "compiler" / "root").iterdir(), *(place / folder for folder in FOLDERS)):
            (package / part.name).symlink_to(part)
        found["PYTHONPATH"] = str(package.parent)
    return found


def _change(body: str, place: Path) -> None:
    """Apply a diff: what it takes out, with the lines around, has to be there once."""
    _, name, *lines = body.splitlines()
    file = place / name.removeprefix("+++ b/").strip()
    old, new = (
        "".join(f"{line[1:]}\n" for line in lines if line[:1] in (" ", sign) or not line) for sign in ("-", "+")
    )
    text = file.read_text()
    assert text.count(old) == 1, f"{name}: these lines are there {text.count(old)} times, expected once:\n{old}"
    file.write_text(text.replace(old, new))


# --- tables -----------------------------------------------------------------------------------------------------------


def state_kinds() -> str:
    """What each kind is, how long it lives, who makes and who reads it, and how it gets to another stage."""
    lives = {"step": "one step", "session": "the session"}
    crosses = {"chunk": "with the tokens", "mirror": "appended rows", "never": "never"}
    rows = []
    for kind in STATE_KINDS.values():
        what, _, shape = kind.meaning.partition(" [")
        shape = f"`[{shape}`" if shape else "any"
        who = (lives[kind.scope], kind.made_by, kind.read_by, crosses[kind.crosses])
        rows.append((f"`{kind.name}`", what, shape, *who))
    return _table(("state", "what it is", "shape", "lives for", "made by", "read by", "to another stage"), rows)


def codes() -> str:
    """Every code, under the heading of its group."""
    parts = []
    for group in GROUPS:
        heading = (group.__doc__ or "").splitlines()[0].removeprefix("Codes ").partition(". ")[0].rstrip(".")
        rows = [(f"`{code.code}`", code.name, code.severity, code.summary) for code in group.CODES]
        parts.append(f"### {heading}\n\n{_table(('code', 'name', 'severity', 'what it says'), rows)}")
    return "\n".join(parts)


def gguf_families() -> str:
    """Each family with its marks and what it spells its own way, or why it is not read."""
    rows = []
    for family in FAMILIES:
        marks = [f"key `…{key}`" for key in family.keys] + [f"tensor `{name}`" for name in family.tensors]
        own = ", ".join(f"`{name.removesuffix('.weight')}`" for name in family.names)
        read = own if family.refused is None else f"not read: {family.refused}"
        rows.append((f"`{family.name}`", ", ".join(marks) or "none of these", read))
    return _table(("family", "marks, any of", "tensors of its own"), rows)


def gguf_tensors() -> str:
    """Official names with what GGUF files call them."""
    names: dict[str, list[str]] = {}
    families = [name for family in FAMILIES for name in family.names.items()]
    for stored, official in dict.fromkeys((*GLOBALS.items(), *LAYERS.items(), *families)):
        names.setdefault(official, []).append(f"`{stored}`")
    rows = [(f"`{official}`", ", ".join(dict.fromkeys(stored))) for official, stored in names.items()]
    return _table(("official", "in GGUF files"), rows)


def gguf_types() -> str:
    """The types that are read."""
    read = [(f"`{kind.name}`", str(number)) for number, kind in TYPES.items() if kind.read]
    return _table(("type", "number"), read)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def checkpoint_names() -> str:
    """Every role with its official name, how the release stores it, and the other names it is read under."""
    others: dict[str, list[str]] = {}
    for variant in VARIANTS:
        for role in variant.roles:
            if tuple(spelled(variant.name)) != (official_name(role),):
                note = "" if variant.transform == "same" else f" ({variant.transform})"
                name = re.sub(r"<([^>]*)>", lambda match: f"({match[1].replace('|', ' or ')})", _in_layer(variant.name))
                others.setdefault(role, []).append(f"{variant.used_by}: `{name}`{note}")
    stored = {"linear": "`weights.linear`", "experts": "`weights.experts`", "engram": "`weights.engram`"}
    rows = [
        (
            f"`{role.role}`",
            f"`{_in_layer(role.name)}`",
            stored.get(role.stored, role.stored),
            "; ".join(others.pop(role.role, ["none"])),
        )
        for role in WEIGHT_ROLES.values()
    ]
    rows += [("not read", f"`{_in_layer(name)}`", "f32", "; ".join(names)) for name, names in others.items()]
    return _table(("role", "official name", "stored as", "also read under"), rows)


def _in_layer(name: str) -> str:
    return name.replace("layers.{layer}.", "….")


def checkpoint_transforms() -> str:
    """What is done to a tensor that holds others."""
    return _table(("word", "what it means"), [(name, text) for name, text in TRANSFORMS.items() if name != "same"])


def checkpoint_declarations() -> str:
    """What a checkpoint may declare."""
    rows = [
        (f"`{key}`", f"`{first}`", ", ".join(f"`{each}`" for each in rest))
        for key, (first, *rest) in DECLARATIONS.items()
    ]
    return _table(("key", "without it", "other values"), rows)


def checkpoint_encodings() -> str:
    """How matrices are stored: dtypes and shapes of codes and scales of one of 64 rows and 96 columns."""
    shape = (64, 96)
    dtypes = {8: "F8_E4M3", 4: "I8, U8 or F4"}
    rows = []
    for name, encoding in ENCODINGS.items():
        if encoding.block is None:
            continue
        codes = weight_shape(name, "I8", shape)
        rows.append(
            (f"`{name}`", dtypes[encoding.bits], str(list(codes or ())), str(list(encoding.scale_shape(shape))))
        )
    return _table(("encoding", "dtype", "codes of [64, 96]", "scales, E8M0"), rows)


NAME_TABLES = {
    "checkpoint names": checkpoint_names,
    "checkpoint transforms": checkpoint_transforms,
    "checkpoint declarations": checkpoint_declarations,
    "checkpoint encodings": checkpoint_encodings,
}
GGUF_TABLES = {"gguf families": gguf_families, "gguf tensors": gguf_tensors, "gguf types": gguf_types}
TABLES: dict[str, Callable[[], str]] = {"state kinds": state_kinds, "codes": codes, **GGUF_TABLES, **NAME_TABLES}


def main(names: list[str]) -> None:
    """Write documents anew."""
    for document in [Path(name) for name in names] or DOCUMENTS:
        text = document.read_text()
        with tempfile.TemporaryDirectory() as place:
            fresh = follow(text, Path(place))
        document.write_text(fresh)
        print(f"{document.name}: {'as it was' if fresh == text else 'written anew, see the diff'}")


if __name__ == "__main__":
    main(sys.argv[1:])
