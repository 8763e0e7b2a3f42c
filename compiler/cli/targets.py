"""`targets`: which kernels run what on which family of devices."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator

from dsv41c.compiler.cli.console import Console


def work(arguments: Namespace, console: Console) -> int:
    """Print the matrix of kinds and families."""
    console.result(_json() if arguments.json else "\n".join(_lines()) + "\n")
    return 0


def _lines() -> Iterator[str]:
    from dsv41c.compiler.targets import FP8_NOTE, LIMITS, rows
    from dsv41c.kernels.catalog import FAMILIES
    from dsv41c.kernels.fusion import ARCHITECTURES, NATIVE_SPECS

    found = rows()
    table = [("kind", *FAMILIES), *((row.kind, *(row.kernels[family] for family in FAMILIES)) for row in found)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    for index, cells in enumerate(table):
        if index and found[index - 1].covers and not found[index - 2].covers:
            yield ""
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    yield ""
    yield from (f"{row.kind} covers {', '.join(row.covers)}" for row in found if row.covers)
    yield ""
    wanted = ", ".join(f"{path}: {value}" for path, value in NATIVE_SPECS.items())
    compiled = "; ".join(f"{family} {', '.join(names)}" for family, names in ARCHITECTURES.items())
    yield f"native kernels are compiled for {compiled}"
    yield f"native kernels run specs of {wanted}; others run on the reference kernels"
    largest = ", ".join(f"{'.'.join(limit.path)}: {limit.most}" for limit in LIMITS)
    yield f"native kernels take at most {largest}"
    yield FP8_NOTE


def _json() -> str:
    from dsv41c.compiler.targets import FP8_NOTE, LIMITS, rows
    from dsv41c.kernels.catalog import FAMILIES
    from dsv41c.kernels.fusion import ARCHITECTURES, NATIVE_SPECS

    data = {
        "format": "dsv41c.targets/1.1",
        "families": {family: {"architectures": list(ARCHITECTURES.get(family, ()))} for family in FAMILIES},
        "native_specs": dict(NATIVE_SPECS),
        "native_limits": {".".join(limit.path): limit.most for limit in LIMITS},
        "kinds": [{"kind": row.kind, "covers": list(row.covers), "kernels": row.kernels} for row in rows()],
        "notes": [FP8_NOTE],
    }
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
