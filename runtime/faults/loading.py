"""Memory that ends while a plan's weights and state are put into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.faults.errors import code_of, said, said_in_full

_HELP = (
    "`dsv41c estimate` says what takes how much; of what is too large, engram tables need little memory with "
    "`engram.storage: mapped` or `disk`"
)


@contextmanager
def expected_to_fit(name: str) -> Iterator[None]:
    """Loading of a model by its name. Raises UserFault (DSV830) where a memory is too small for it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if code_of(error) != "DSV841":
            raise
        text = f"plan `{name}` does not fit into memory: {said(error)}"
        raise UserFault([Diagnostic("DSV830", text, facts=said_in_full(error), help=_HELP)]) from error
