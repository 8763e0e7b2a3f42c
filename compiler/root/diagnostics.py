"""What a finding is: a code, a place, a sentence, the facts in play, and a way out.

A user's fault is a `Diagnostic`, in the compiler and in the runtime alike; an exception is a bug of ours. Checks report
into a `Sink` and go on, so that one run shows every finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a source text: 1-based lines and columns, the end exclusive. A tab counts as one column.

    `file` is a name to show a person (`specs/toy.yaml`, `<--set 1>`, `model.safetensors.index.json`), never a path that
    only exists on one machine unless the user typed it.
    """

    file: str
    line: int = 1
    column: int = 1
    end_line: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that takes part in a finding, with a short remark."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A text that takes the place of what a span covers; a span without width is a place to put it in."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `message` says what is and what was expected; only `help` proposes the way out.

    Wording: lower case, no full stop, identifiers in backticks. `facts` are (name, value) pairs that a reader needs to
    judge the finding (`layers.compress_ratios[3]`, `1`). `fix` are edits of the text that mend it, where nobody has to
    decide anything; they have been tried where a finding is shown. `left_out` is how many more of its code there were
    where this one is the last that a `Sink` has kept.
    """

    code: str
    message: str
    span: Span | None = None
    labels: tuple[Label, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    help: str | None = None
    notes: tuple[str, ...] = ()
    fix: tuple[Edit, ...] = ()
    left_out: int = 0

    @property
    def severity(self) -> Severity:
        """The severity of the code; it is a property of the kind of fault, not of one finding."""
        from dsv41c.codes import TABLE

        return TABLE[self.code].severity


MOST_OF_A_CODE = 200


@dataclass(slots=True)
class Sink:
    """Collects findings, each once, in the order they are made; `ordered()` gives the order to show them in.

    Of one code the first `MOST_OF_A_CODE` are kept, and others counted: nobody reads the hundred thousandth entry of a
    generated list, and showing it takes minutes. `errors` counts all that were added.
    """

    errors: int = 0
    _items: dict[Diagnostic, None] = field(default_factory=dict)
    _kept: Counter[str] = field(default_factory=Counter)
    _left_out: Counter[str] = field(default_factory=Counter)
    _counted: set[int] = field(default_factory=set)  # hashes of those left out, to count equal ones once

    def add(self, diagnostic: Diagnostic) -> None:
        """Keep a finding, unless an equal one is there already."""
        if diagnostic.left_out:
            self.leave_out(diagnostic.code, diagnostic.left_out)
            diagnostic = replace(diagnostic, left_out=0)
        self.errors += diagnostic.severity == "error"
        if diagnostic in self._items:
            return
        if self._kept[diagnostic.code] < MOST_OF_A_CODE:
            self._kept[diagnostic.code] += 1
            self._items[diagnostic] = None
        elif (mark := hash(diagnostic)) not in self._counted:
            self._counted.add(mark)
            self._left_out[diagnostic.code] += 1

    def leave_out(self, code: str, count: int) -> None:
        """Count findings that are like those of a code that were kept, and were not made for that reason."""
        self._left_out[code] += count
        self.errors += count * (Diagnostic(code, "").severity == "error")

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Keep several findings."""
        for diagnostic in diagnostics:
            self.add(diagnostic)

    def __iter__(self) -> Iterator[Diagnostic]:
        last = {item.code: item for item in self._items}
        for item in self._items:
            count = self._left_out[item.code] if last[item.code] is item else 0
            yield replace(item, left_out=count) if count else item

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return has_errors(self._items)


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether any of the findings is an error."""
    return any(diagnostic.severity == "error" for diagnostic in diagnostics)


def ordered(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The findings by place, then code: the order in which every format shows them."""
    nowhere = Span("", 0, 0)
    return tuple(sorted(diagnostics, key=lambda d: (d.span or nowhere, d.code, d.message)))


class UserFault(Exception):
    """Carries findings out of a place that cannot go on. Caught by the command line and by library entry points."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(f"{d.code}: {d.message}" for d in self.diagnostics))
