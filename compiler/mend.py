"""Mends a text by the edits that its findings bring, and keeps only what helps.

An edit is mechanical: nobody has to decide anything. Each is tried, and stays where the text then has fewer findings
and none that it did not have before. So what is offered is what was seen to work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dsv41c.compiler.source.edits import apply, takes_comments
from dsv41c.diagnostics import Diagnostic

Judge = Callable[[str], Sequence[Diagnostic]]
MOST = 50  # texts that are tried, each as long as a load takes: nobody slips so often
LARGEST = 1 << 18  # characters of a text that is mended: a spec that people write has a few thousand


@dataclass(frozen=True, slots=True)
class Mended:
    """A text before and after, and those findings about the text before that are gone after."""

    before: str
    after: str
    gone: tuple[Diagnostic, ...]


def mend(file: str, text: str, findings: Sequence[Diagnostic], judge: Judge) -> Mended:
    """The text of `file` with every edit made that helps. `judge` gives the findings about a text in its place."""
    now, found, tries = text, findings, _Tries(file, judge)
    helped = len(text) <= LARGEST
    while helped:
        helped = False
        offered = [each for each in found if _can_be_made(each, file, now)]
        for attempt in _attempts(offered):
            if (better := tries.better(now, found, attempt)) is not None:
                (now, found), helped = better, True
                break
    return Mended(text, now, tuple(_gone(findings, found)))


@dataclass(slots=True)
class _Tries:
    """Tries edits of a text, up to a number of times."""

    file: str
    judge: Judge
    left: int = MOST

    def better(
        self, text: str, found: Sequence[Diagnostic], attempt: Sequence[Diagnostic]
    ) -> tuple[str, Sequence[Diagnostic]] | None:
        """The text after some findings were mended and its findings, if those are fewer and none is new.

        A slip can hide others, in a section whose name is misspelt: what comes to light is mended along with it.
        """
        edited, after, known = text, found, set(map(_key, found))
        while attempt and self.left:
            new = apply(edited, (edit for each in attempt for edit in each.fix))
            if new is None:
                return None
            self.left -= 1
            edited, after = new, self.judge(new)
            if _better(found, after):
                return edited, after
            attempt = [each for each in after if _key(each) not in known and _can_be_made(each, self.file, edited)]
            known.update(map(_key, attempt))
        return None


def _attempts(offered: Sequence[Diagnostic]) -> Iterator[Sequence[Diagnostic]]:
    """All at once, which is the usual case; then each alone."""
    if len(offered) > 1:
        yield offered
    yield from ([each] for each in offered)


def _can_be_made(finding: Diagnostic, file: str, text: str) -> bool:
    """Whether a finding brings edits, of this very text alone, that leave its comments where they are."""
    inside = all(edit.span.file == file for edit in finding.fix)
    return bool(finding.fix) and inside and not takes_comments(text, finding.fix)


def _better(before: Iterable[Diagnostic], after: Iterable[Diagnostic]) -> bool:
    """Fewer findings, and none that was not there. Places move with the text, so they do not count."""
    old, new = Counter(map(_key, before)), Counter(map(_key, after))
    return new.total() < old.total() and not new - old


def _gone(before: Iterable[Diagnostic], after: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    left = Counter(map(_key, after))
    for each in before:
        if left[_key(each)]:
            left[_key(each)] -= 1
        else:
            yield each


def _key(finding: Diagnostic) -> tuple[str, str]:
    return finding.code, finding.message
