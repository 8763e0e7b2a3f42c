"""Numbers, sizes and lists as a person reads them: the same in plans, findings and on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def ranges(numbers: Iterable[int], most: int | None = None) -> str:
    """Numbers in ascending order with runs folded: `2, 8, 30-39`; of more than `most` runs the rest is counted."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return shortlist([str(first) if first == last else f"{first}-{last}" for first, last in runs], most or len(runs))


def layers(numbers: Iterable[int], most: int | None = None) -> str:
    """`layer 4` or `layers 4-6, 8`."""
    found = set(numbers)
    return f"layer{'s' if len(found) > 1 else ''} {ranges(found, most)}"


def counted(number: int, noun: str) -> str:
    """`1 tensor`, `2,048 tensors`, `3 entries`."""
    several = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else several}"


def shortlist(words: Sequence[str], most: int) -> str:
    """The first words, and how many there are beyond: `a, b and 3 more`."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def joined(words: Sequence[str], last: str) -> str:
    """`a`, `a or b`, `a, b or c`, with `last` before the last one."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def size(count: int) -> str:
    """Bytes in the unit a person would use: `36.2 MiB`."""
    for unit, scale in _UNITS:
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
