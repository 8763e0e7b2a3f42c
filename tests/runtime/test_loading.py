"""A plan whose weights and state are too large for a memory is told so, with the way out, and not as a bug."""

import pytest
import torch
from golden_tiny import MODES, TINY, plan, weights

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.weights import row_source

HOST = ("storage: mapped", "storage: host")


def test_a_table_that_the_host_has_no_memory_for(monkeypatch):
    """The refusal is the system's own: of more than any memory has."""
    monkeypatch.setattr(row_source.HostRows, "__init__", lambda self, source: torch.empty(1 << 60, dtype=torch.uint8))
    with pytest.raises(UserFault) as caught:
        Engine(plan(next(iter(MODES)), HOST), TINY)
    (found,) = caught.value.diagnostics
    assert found.code == "DSV830" and "does not fit into memory" in found.message
    assert "engram.storage: mapped" in found.help and "dsv41c estimate" in found.help


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GB")])
def test_a_device_that_is_too_small(error, monkeypatch):
    def full(*_):
        raise error

    monkeypatch.setattr("dsv41c.runtime.steps.placed", full)
    mode = next(iter(MODES))
    with pytest.raises(UserFault, match="DSV830"):
        Engine(plan(mode), TINY, weights=weights(mode))


def test_other_errors_stay_what_they_are(monkeypatch):
    def broken(*_):
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr("dsv41c.runtime.steps.placed", broken)
    mode = next(iter(MODES))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        Engine(plan(mode), TINY, weights=weights(mode))
