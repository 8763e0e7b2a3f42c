"""Tables of a terminal: columns aligned, the last one wrapped at 100."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

WIDTH = 100
_NARROWEST = 20  # of the last column, however long the names before it are


def table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; `title` heads the first column. A name with `>` before it is of a column of numbers."""
    heads = (title, *(name.removeprefix(">") for name in names))
    numbers = (False, *(name.startswith(">") for name in names))
    yield from aligned([heads, *((f"  {row[0]}", *row[1:]) for row in rows)], numbers)


def aligned(rows: Sequence[Sequence[str]], numbers: Sequence[bool] = ()) -> Iterator[str]:
    """Rows with their columns aligned: to the right where they are `numbers`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = (*numbers, *[False] * (len(widths) - len(numbers)))
    for row in rows:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ]
        if right[-1]:
            yield "  ".join(cells).rstrip()
        else:
            yield from _wrapped("".join(f"{cell}  " for cell in cells[:-1]), row[-1])


def _wrapped(start: str, last: str) -> Iterator[str]:
    room = max(WIDTH - len(start), _NARROWEST)
    first, *more = wrap(last, room, break_long_words=False, break_on_hyphens=False) or [""]
    yield (start + first).rstrip()
    yield from (" " * len(start) + line for line in more)
