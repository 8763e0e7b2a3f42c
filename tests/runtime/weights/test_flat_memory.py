"""A table of the release's size is read in memory that stays flat. Its file is sparse: it takes no room on the disk."""

import os
import subprocess
import sys

import pytest

ROWS, WIDTH = 384_006_168, 256  # of each of the release's two tables
LIMIT_KB = 300_000
LAYERS = (1, 14)

# Anonymous memory and pages of maps, by the system's count. What a process holds before is torch, not tables.
SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
import hand_made as plans
from dsv41c.runtime.manifest import EngramEntry, EngramLayerEntry
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.table import lookups

torch.set_num_threads(1)

def resident(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key))

layers = [EngramLayerEntry(layer=n, multipliers=[1] * 4, primes=[2] * 24, offsets=[0] * 24) for n in {layers}]
engram = EngramEntry(max_ngram_size=4, n_heads=8, head_dim={width}, pad_id=2, compressed_vocab_size=99092,
                     storage={storage!r}, layers=layers)
symbols = {{"engram_rows": {rows}, "engram_head_dim": {width}}}
manifest = plans.manifest([plans.entry("engram_table", symbols, n) for n in {layers}])
manifest = manifest.model_copy(update={{"engram": engram}})
warm = torch.arange(100).unique(return_inverse=True)  # what torch keeps of its own
before = resident("VmRSS")
weights = bind(manifest, {path!r})
generator, peak = torch.Generator().manual_seed(0), 0
for step in range({steps}):
    for layer in {layers}:
        ids = torch.randint(0, {rows}, (1, 64, 24), generator=generator)
        rows = weights[f"layers.{{layer}}.engram_table"].rows(ids)
        assert rows.shape == (1, 64, 24, {width}) and not rows.any()
    peak = max(peak, resident("VmRSS"))
found = lookups(weights)
print(peak - before, resident("VmPTE"), found.misses)
"""


@pytest.fixture(scope="module")
def huge(plans, tmp_path_factory):
    """A checkpoint with both tables, 189 GiB, none of it on the disk."""
    folder = tmp_path_factory.mktemp("huge")
    size = len(LAYERS) * ROWS * (WIDTH + WIDTH // 32)
    for layer in LAYERS:
        name = f"layers.{layer}.engram.embed"
        tensors = {
            f"{name}.weight": ("F8_E4M3", [ROWS, WIDTH], ROWS * WIDTH),
            f"{name}.scale": ("F8_E8M0", [ROWS, WIDTH // 32], ROWS * WIDTH // 32),
        }
        head = plans.header(tensors)
        file = folder / f"{layer}.safetensors"
        file.write_bytes(head)
        try:
            os.truncate(file, len(head) + ROWS * (WIDTH + WIDTH // 32))
        except OSError as error:
            pytest.skip(f"no file of so many bytes can be made here: {error.strerror}")
        if file.stat().st_blocks * 512 > 1 << 24:
            pytest.skip("files are not sparse here")
    assert size > 188 << 30
    return folder


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not say what is resident")
@pytest.mark.parametrize("storage", ["mapped", "disk"])
def test_memory_stays_flat(huge, plans, storage):
    steps = 12  # 2 x 18,432 rows, of which no two are near each other
    script = SCRIPT.format(
        tests=os.path.dirname(plans.__file__), path=str(huge), storage=storage, rows=ROWS, width=WIDTH, layers=LAYERS,
        steps=steps,
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    grown, tables, misses = map(int, done.stdout.split())
    assert misses > 0.99 * steps * 2 * 64 * 24  # that many rows really came from the file
    assert grown + tables < LIMIT_KB, done.stdout
