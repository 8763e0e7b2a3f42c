"""Rows of tables from every place, in every form, by one thread or several, also where other rows lie between."""

import os
from threading import Thread

import pytest
import torch

from dsv41c.kernels.reference.engram import HeldTable
from dsv41c.runtime.manifest import EngramEntry, EngramLayerEntry
from dsv41c.runtime.weights import row_source
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.headers import read_checkpoint
from dsv41c.runtime.weights.row_source import DiskRows, HostRows, MappedRows, Part

TABLE = "layers.1.engram.embed"
ROWS, WIDTH = 300, 64
SOURCES = {
    "mapped": MappedRows,
    "disk": DiskRows,
    "host": lambda parts, checkpoint: HostRows(MappedRows(parts, checkpoint)),
}


@pytest.fixture
def bytes_of_rows(plans, tmp_path):
    """A file with codes and scales behind another tensor; the raw rows, and the headers with the checkpoint."""
    drawn = torch.randint(0, 120, (ROWS, WIDTH + WIDTH // 32), dtype=torch.uint8)
    codes, scale = drawn[:, :WIDTH].contiguous(), drawn[:, WIDTH:].contiguous()
    tensors = {
        "vision.odd": ("U8", [3], b"\1\2\3"),
        f"{TABLE}.weight": ("F8_E4M3", [ROWS, WIDTH], codes.numpy().tobytes()),
        f"{TABLE}.scale": ("F8_E8M0", [ROWS, WIDTH // 32], scale.numpy().tobytes()),
    }
    plans.write(tmp_path / "x.safetensors", tensors)
    checkpoint = read_checkpoint(tmp_path)
    return drawn, [checkpoint.tensors[f"{TABLE}.{part}"] for part in ("weight", "scale")], checkpoint


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("few", [True, False])
def test_rows_and_spans(name, few, bytes_of_rows, monkeypatch):
    monkeypatch.setattr(row_source, "DROPPED", 50)  # pages are let go of all the time
    whole, headers, checkpoint = bytes_of_rows
    source = SOURCES[name]([Part.of(header) for header in headers], checkpoint)
    assert (source.count, source.width) == whole.shape
    for seed in range(5):
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
        ids = order[: 7 if few else ROWS]
        assert torch.equal(source.read(ids), whole[ids])
    assert torch.equal(source.span(3, 40), whole[3:40]) and torch.equal(source.span(0, ROWS), whole)
    assert source.read(torch.empty(0, dtype=torch.int64)).shape == (0, whole.shape[1])


@pytest.mark.parametrize("name", SOURCES)
def test_rows_that_lie_apart(name, bytes_of_rows):
    """Every second row, as a tensor that shares its rows with another one."""
    whole, (codes, _), checkpoint = bytes_of_rows
    apart = codes._replace(shape=(ROWS // 2, WIDTH), size=codes.size // 2, offset=codes.offset + WIDTH, pitch=2 * WIDTH)
    source = SOURCES[name]([Part.of(apart)], checkpoint)
    expected = whole[1::2, :WIDTH]
    ids = torch.tensor([0, 17, ROWS // 2 - 1])
    assert torch.equal(source.read(ids), expected[ids]) and torch.equal(source.span(5, 9), expected[5:9])


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_the_disk_is_asked_for_all_rows_before_the_first_is_read(bytes_of_rows, monkeypatch):
    _, headers, checkpoint = bytes_of_rows
    source = DiskRows([Part.of(header) for header in headers], checkpoint)
    told, advise, read = [], os.posix_fadvise, os.preadv

    def advised(file, offset, size, what):
        told.append(("ask", offset, size)) if what == os.POSIX_FADV_WILLNEED else None
        return advise(file, offset, size, what)

    def taken(file, buffers, offset):
        told.append(("read", offset, len(buffers[0])))
        return read(file, buffers, offset)

    monkeypatch.setattr(os, "posix_fadvise", advised)
    monkeypatch.setattr(os, "preadv", taken)
    source.read(torch.tensor([5, 250, 31]))
    assert [kind for kind, *_ in told] == ["ask"] * 6 + ["read"] * 6
    assert [place for _, *place in told[:6]] == [place for _, *place in told[6:]]


@pytest.mark.parametrize("name", ["mapped", "disk"])
def test_threads_read_together(name, bytes_of_rows, monkeypatch):
    monkeypatch.setattr(row_source, "DROPPED", 20)
    whole, headers, checkpoint = bytes_of_rows
    source, wrong = SOURCES[name]([Part.of(header) for header in headers], checkpoint), []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(40):
            ids = torch.randint(0, ROWS, (100,), generator=generator)
            if not torch.equal(source.read(ids), whole[ids]):
                wrong.append(seed)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_files_are_closed_with_the_table(bytes_of_rows):
    def opened():
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("the system does not list open files")
    _, headers, checkpoint = bytes_of_rows
    before = opened()
    for name in ("mapped", "disk"):
        source = SOURCES[name]([Part.of(header) for header in headers], checkpoint)
        source.read(torch.tensor([1]))
        assert opened() > before
        del source
        assert opened() == before


def _manifest(plans, storage):
    layer = EngramLayerEntry(layer=1, multipliers=[1] * 4, primes=[2] * 6, offsets=[0] * 6)
    sizes = {"max_ngram_size": 4, "n_heads": 2, "head_dim": 32, "pad_id": 2, "compressed_vocab_size": 426}
    engram = EngramEntry(**sizes, storage=storage, layers=[layer])
    symbols = {"engram_rows": 462, "engram_head_dim": 32}
    return plans.manifest([plans.entry("engram_table", symbols, 1)]).model_copy(update={"engram": engram})


@pytest.mark.parametrize("storage", ["device", "host", "mapped", "disk"])
@pytest.mark.parametrize("dtype", ["F8_E4M3", "BF16", "F32"])
def test_every_form_has_the_same_values(storage, dtype, plans, tiny_data, tmp_path, monkeypatch):
    stored = {name: tiny_data[name] for name in (f"{TABLE}.weight", f"{TABLE}.scale")}
    plans.write(tmp_path / "fp8.safetensors", stored)
    expected = bind(_manifest(plans, "mapped"), tmp_path)["layers.1.engram_table"].rows(torch.arange(462))
    if dtype != "F8_E4M3":
        os.remove(tmp_path / "fp8.safetensors")
        kind = {"BF16": torch.bfloat16, "F32": torch.float32}[dtype]
        data = expected.to(kind).view(torch.uint8).numpy().tobytes()
        plans.write(tmp_path / "x.safetensors", {f"{TABLE}.weight": (dtype, [462, 32], data)})
    table = bind(_manifest(plans, storage), tmp_path)["layers.1.engram_table"]
    ids = torch.tensor([[461, 0, 7], [7, 7, 100]])
    assert torch.equal(table.rows(ids), expected[ids])
    held = table.held(torch.device("cpu"), native=True)
    assert isinstance(held, HeldTable) and torch.equal(held.rows(ids), expected[ids])
    with pytest.raises(IndexError):
        table.rows(torch.tensor([462]))
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    assert (table.pinned() is not None) == (storage == "host" and dtype == "F8_E4M3")
