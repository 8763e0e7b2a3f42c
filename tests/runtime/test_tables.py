"""Engram tables wherever they are stored: equal values, rows read ahead, faults of files as findings in the step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
import torch
from golden_tiny import MODES, TINY, ids, plan, weights
from torch import Tensor

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.reference.engram import HeldTable
from dsv41c.runtime.device.tensors import is_held, on_device
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest import Manifest, read, to_text
from dsv41c.runtime.prefetch import FEW, Prefetch
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.row_source import HostRows
from dsv41c.runtime.weights.table import StoredTable, lookups, table_for
from dsv41c.runtime.work_space import rows_from_host

STORAGES = ("device", "host", "mapped", "disk")
CUDA = ('devices: ["cpu:0"]', 'devices: ["cuda:0"]')
NATIVE = (CUDA, ("activation_quant: fp8", "activation_quant: none"))
GPU = torch.device("cuda", 0)
FEWER = ("decode_buckets: [1, 2, 4]", "decode_buckets: [4]")  # of graphs; rows of padding come with every step
TABLES = ("layers.1.engram_table", "layers.4.engram_table")


def stored(name: str) -> tuple[str, str]:
    return "storage: mapped", f"storage: {name}"


def engine(
    storage: str, *changes: tuple[str, str], folder: Path = TINY, mode: str = next(iter(MODES)), **more: Any
) -> Engine:
    """An engine with tables of its own, and all other weights shared."""
    compiled = plan(mode, stored(storage), *changes)
    bound = bind(compiled.manifest, folder, wanted=TABLES)
    return Engine(compiled, folder, weights={**weights(mode), **{name: bound[name] for name in bound}}, **more)


def played(running: Engine) -> list[Tensor]:
    """A prompt in two chunks, batches that are padded and grow, a fork, a reset: the logits of all."""
    tokens, found = ids(), []
    one, two = running.open(), running.open()
    found.append(running.feed(one, tokens[:21], chunk=13))
    found.append(running.feed(two, tokens[30:33], all_logits=True))
    found += running.decode({one: tokens[21], two: tokens[33]}).values()
    three = one.fork()
    for token in tokens[40:43]:
        found += running.decode({three: token, two: token, one: token + 1}).values()
    two.reset()
    found.append(running.feed(two, tokens[:2]))
    three.close()
    four = two.fork()  # takes the slot and, by chance, a length that was there before
    found += running.decode({four: 7, two: 8}).values()
    return found


@pytest.fixture(scope="module")
def expected() -> list[Tensor]:
    running = Engine(plan(), TINY, weights=weights())
    running.steps.prefetch = None  # rows when the layer gets there, by the ids of its own kernels
    return played(running)


@pytest.mark.parametrize("storage", STORAGES)
def test_all_storages_give_the_same_logits(storage: str, expected: list[Tensor]) -> None:
    running = engine(storage, debug=2)  # which holds the host's ids to those of the kernels
    assert all(torch.equal(one, other) for one, other in zip(played(running), expected, strict=True))
    tables = [running.weights[name] for name in TABLES]
    assert all(isinstance(table, HeldTable if storage == "device" else StoredTable) for table in tables)
    assert (running.steps.prefetch is None) == (storage == "device")


@pytest.mark.parametrize(("storage", "capture"), [("device", "layer"), ("disk", "all")])
def test_captured_steps_read_ahead_too(storage: str, capture: str, expected: list[Tensor]) -> None:
    changes = (CUDA, ("capture: layer", f"capture: {capture}"), FEWER)
    running = engine(storage, *changes, strict=True, debug=2)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(played(running), expected, strict=True))
    assert running.captured is not None and bool(running.captured.tables) == (storage == "disk")


def test_rows_are_on_their_way_before_the_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine("disk")
    assert running.steps.prefetch is not None
    told: list[str] = []
    begin, run = Prefetch.begin, running.executor.run_regions
    monkeypatch.setattr(Prefetch, "begin", lambda *given: told.append("begin") or begin(*given))
    monkeypatch.setattr(running.executor, "run_regions", lambda *given: told.append("run") or run(*given))
    with running.open() as session:
        running.feed(session, ids()[:9], chunk=5)
        session.feed([3])
    assert told == ["begin", "run"] * 3


def test_threads_read_for_many_tokens_and_the_step_itself_for_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine("host")
    readers: list[str] = []
    rows = StoredTable.rows
    monkeypatch.setattr(
        StoredTable, "rows", lambda table, ids: readers.append(current_thread().name) or rows(table, ids)
    )
    with running.open() as session:
        for count, own in ((FEW, True), (FEW + 1, False), (1, True)):
            running.feed(session, ids()[:count])
            assert len(readers) == 2
            assert all((name == current_thread().name) == own for name in readers), readers
            readers.clear()


def test_a_step_does_not_ask_for_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine("mapped")
    asked: list[int] = []
    rows = StoredTable.rows
    monkeypatch.setattr(StoredTable, "rows", lambda table, ids: asked.append(ids.shape[1]) or rows(table, ids))
    with running.open() as session:
        running.feed(session, ids()[:9])
    assert asked == [9, 9]  # each table once, though regions of the tail compute fewer rows


def test_state_that_somebody_else_wrote_is_taken_from_the_pool() -> None:
    other, running = engine("host"), engine("disk")
    first, session = other.open(), running.open()
    other.feed(first, ids()[:21])
    running.pools.copy_from(other.pools, session.slot)
    session.length = 21
    assert torch.equal(session.feed([ids()[21]]), other.feed(first, [ids()[21]]))


def test_recorded_steps_have_the_same_rows() -> None:
    trace, running = Trace(), engine("disk")
    with running.open() as session:
        running.feed(session, ids()[:9], trace=trace)
    values = trace.steps[0].values
    index = {"engram_rows@L1": 0, "engram_rows@L4": 1}
    for name, place in index.items():
        table = running.weights[TABLES[place]]
        assert isinstance(table, StoredTable)
        assert torch.equal(values[name], table.rows(values["engram_ids"][:, :, place]).flatten(-2))


# --- tables that a GPU reads out of pinned memory ---------------------------------------------------------------------


def native(storage: str, *changes: tuple[str, str]) -> Manifest:
    """The plan whose tables native kernels of a GPU read, where they can."""
    return plan("bf16-act_fp8-kv_reference", stored(storage), *NATIVE, *changes).manifest


@pytest.fixture
def all_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU nothing can be."""
    pytest.importorskip("triton")
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: True)


def test_a_gpu_reads_pinned_tables_where_they_are(all_is_pinned: None) -> None:
    manifest = native("host")
    for name, table in bind(manifest, TINY, wanted=TABLES).items():
        assert isinstance(table, StoredTable) and isinstance(table.source, HostRows)
        taken: Any = table_for(table, manifest, GPU)
        assert is_held(taken) and not rows_from_host(manifest)
        assert on_device({name: taken}, GPU)[name] is taken, "it stays in the host's memory"
        memory = table.source.memory
        assert taken.codes.data_ptr() == memory.data_ptr()
        assert torch.equal(torch.cat([taken.codes, taken.scale], dim=1), memory)
        every = torch.arange(len(memory))
        assert torch.equal(HeldTable(taken.codes, taken.scale).rows(every), table.rows(every))


@pytest.mark.parametrize(
    ("storage", "changes", "place"),
    [
        ("mapped", (), GPU),
        ("disk", (), GPU),
        ("host", (), torch.device("cpu")),
        ("host", (("compute: bf16", "compute: f32"),), GPU),
        ("host", (('"cuda:0"', '"hpu:0"'),), torch.device("cpu")),
    ],
    ids=["mapped", "disk", "strict", "plain torch", "hpu"],
)
def test_other_tables_are_read_by_the_host(
    storage: str, changes: tuple[tuple[str, str], ...], place: torch.device, all_is_pinned: None
) -> None:
    manifest = native(storage, *changes)
    for table in bind(manifest, TINY, wanted=TABLES).values():
        assert isinstance(table, StoredTable) and table_for(table, manifest, place) is table
        assert not is_held(table)


def test_a_table_that_is_not_pinned_after_all_is_read_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: False)  # as where the system would not
    manifest = native("host")
    for table in bind(manifest, TINY, wanted=TABLES).values():
        assert isinstance(table, StoredTable) and table_for(table, manifest, GPU) is table


# --- the cache --------------------------------------------------------------------------------------------------------


def test_sessions_share_the_cache() -> None:
    running = engine("disk")
    with running.open() as one, running.open() as two:
        running.feed(one, ids()[:9])
        after_one = lookups(running.weights)
        running.feed(two, ids()[:9])
    after_two = lookups(running.weights)
    assert after_one is not None and after_two is not None and after_one.misses
    assert (after_two - after_one).rate == 1.0
    assert lookups(engine("host").weights) is None and lookups(engine("device").weights) is None


@pytest.mark.parametrize(("size", "some"), [(0, False), (20_000, True)])
def test_the_cache_has_the_size_that_the_spec_gives(size: int, some: bool) -> None:
    change = ("storage: mapped}", f"storage: mapped, row_cache_bytes: {size}}}")
    compiled = plan(next(iter(MODES)), change)
    assert compiled.manifest.engram is not None and compiled.manifest.engram.row_cache_bytes == size
    tables = [
        table for table in bind(compiled.manifest, TINY, wanted=TABLES).values() if isinstance(table, StoredTable)
    ]
    sizes = [table.cache.bytes for table in tables if table.cache is not None]
    assert bool(sizes) == some and sum(sizes) <= size
    assert not some or sum(sizes) > 0.9 * size


def test_a_plan_of_default_storage_says_nothing_of_a_cache() -> None:
    compiled = plan()
    text = to_text(compiled.manifest)
    assert "row_cache_bytes" not in text and (compiled.folder / "manifest.json").read_text() == text
    assert read(compiled.folder) == compiled.manifest


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The golden checkpoint, to be spoiled."""
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


def table_file(folder: Path) -> Path:
    from dsv41c.runtime.weights.headers import read_checkpoint

    return folder / read_checkpoint(folder).tensors["layers.4.engram.embed.weight"].file


def fault_of(step: Any) -> str:
    with pytest.raises(UserFault) as fault:
        step()
    (finding,) = fault.value.diagnostics
    assert finding.help and finding.span is not None
    return f"{finding.code} {finding.message}"


@pytest.mark.parametrize(("storage", "strict"), [("mapped", False), ("disk", False), ("disk", True)])
def test_a_file_that_is_cut_meanwhile(storage: str, strict: bool, copied: Path) -> None:
    running = engine(storage, *([CUDA, FEWER] if strict else []), folder=copied, strict=strict)
    file = table_file(copied)
    with running.open() as one, running.open() as two:
        running.feed(one, ids()[:3])
        running.decode({one: 3})
        size, whole = file.stat().st_size, file.read_bytes()
        os.truncate(file, size // 2)
        said = fault_of(lambda: running.decode({one: 4}) if strict else running.feed(one, [4]))
        assert said.startswith("DSV733 ") and file.name in said and str(size // 2) in said
        assert one.broken and not two.broken
        file.write_bytes(whole)
        one.reset()
        assert torch.equal(running.feed(one, ids()[:3]), running.feed(two, ids()[:3]))


def test_an_error_of_the_disk(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine("disk", folder=copied)

    def broken(*given: object) -> int:
        raise OSError(5, "Input/output error")

    session = running.open()
    monkeypatch.setattr(os, "preadv", broken)
    assert "input/output error" in fault_of(lambda: running.feed(session, ids()[:3]))
    monkeypatch.undo()
    session.reset()
    running.feed(session, ids()[:3])


@pytest.mark.parametrize("storage", STORAGES)
def test_a_file_that_changed_before_it_is_opened(storage: str, copied: Path) -> None:
    from dsv41c.runtime.weights.headers import read_checkpoint

    found = read_checkpoint(copied)
    os.truncate(table_file(copied), table_file(copied).stat().st_size - 1)
    compiled = plan(next(iter(MODES)), stored(storage))
    with pytest.raises(UserFault) as fault:
        bind(compiled.manifest, found, wanted=TABLES)
    assert {finding.code for finding in fault.value.diagnostics} == {"DSV732"}


@pytest.mark.parametrize("storage", STORAGES)
def test_a_damaged_row(storage: str, copied: Path) -> None:
    """Told when it is read: of tables in memory by then, of others in the step that needs it."""
    from dsv41c.runtime.weights.headers import read_checkpoint

    header = read_checkpoint(copied).tensors["layers.4.engram.embed.scale"]
    data = bytearray((copied / header.file).read_bytes())
    data[header.offset : header.offset + header.size] = b"\xff" * header.size
    (copied / header.file).write_bytes(data)

    def step() -> None:
        running = engine(storage, folder=copied)
        running.feed(running.open(), ids()[:3])

    assert fault_of(step).startswith("DSV730 ")


def test_a_damaged_row_of_a_table_that_a_gpu_reads(copied: Path, all_is_pinned: None) -> None:
    """Told before the first step, since a GPU refuses no row."""
    from dsv41c.runtime.weights.headers import read_checkpoint

    header = read_checkpoint(copied).tensors["layers.4.engram.embed.scale"]
    data = bytearray((copied / header.file).read_bytes())
    data[header.offset + header.size - 1] = 255
    (copied / header.file).write_bytes(data)
    manifest = native("host")
    table = bind(manifest, copied, wanted=TABLES)["layers.4.engram_table"]
    assert isinstance(table, StoredTable)
    assert f"row {header.shape[0] - 1} " in fault_of(lambda: table_for(table, manifest, GPU))
