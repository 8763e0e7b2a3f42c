"""Pinned memory without a GPU: what its driver is told, and when."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from dsv41c.runtime.weights.pinned import host_rows


class Driver:
    """Keeps what is registered, as CUDA's runtime does."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.registered: dict[int, int] = {}
        self.let_go: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert flags & 1, "for every device"
        self.registered |= {} if self.answer else {address: size}
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:
        self.let_go.append(address)
        del self.registered[address]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    return driver


def test_it_is_registered_to_the_byte_as_long_as_a_view_of_it_lives(driver: Driver) -> None:
    rows = host_rows(1000, 264)
    assert rows.shape == (1000, 264) and driver.registered == {rows.data_ptr(): 264_000}
    rows.fill_(7)
    view = rows[:, 256:]
    del rows
    gc.collect()
    assert len(driver.registered) == 1 and (view == 7).all()
    del view
    gc.collect()
    assert driver.registered == {}


def test_a_driver_that_will_not_is_told_and_not_asked_to_let_go(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "CudaError", lambda code: RuntimeError(f"out of memory ({code})"))
    driver.answer = 2
    with pytest.raises(RuntimeError, match=r"out of memory \(2\)"):
        host_rows(10, 64)
    gc.collect()
    assert driver.let_go == [], "it never had it"


def test_without_a_gpu_and_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert host_rows(3, 5).shape == (3, 5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert host_rows(0, 5).shape == (0, 5)
