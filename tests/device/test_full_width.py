"""One layer of each kind of deepseek-v4.1-flash at full width: native kernels beside the reference ones."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from layer_cases import Case, Layers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# Window only; engram; a KV and index source of ratio 2, and one that reads it; engram and source; a source of ratio 1
# with candidates, and one that reads it; an index source that owns no keys.
LAYERS = (0, 1, 2, 3, 14, 20, 21, 24)
REGIONS = ("embed", *(f"layers.{layer}" for layer in LAYERS), "head")
CACHES = ("layers.0", "layers.2", "layers.3", "layers.20", "layers.24")  # where rows of a cache are read and written
FAMILY = "rocm" if torch.version.hip else "cuda"

BATCH = Case((1, 127, 128, 1500, 1501, 129, 4000), padding=1, captured=True)
CASES = (
    Case((1500,), captured=True),
    Case((0,), padding=1, captured=True),
    BATCH,
    Case((200,)),
    Case((0,), tokens=37),
    Case((201,), tokens=37),
    Case((0,), tokens=300),
    Case((200,), tokens=300),
)
PACKED = (BATCH, Case((201,), tokens=37), Case((200,), tokens=300))


@cache
def layers(kv_cache: str) -> Layers:
    """Eight experts are stored, of which six are active; both plans share their weights."""
    sets = ["runtime.max_context=4096", "runtime.max_sessions=8", f"numerics.kv_cache={kv_cache}"]
    weights = None if kv_cache == "reference" else layers("reference").weights
    place = torch.device("cuda", 0)
    return Layers("deepseek-v4.1-flash", REGIONS, place, sets, family=FAMILY, stored_experts=8, weights=weights)


@pytest.fixture(autouse=True)
def whole_products() -> None:
    """What the kernels are held against is math in whole f32 numbers."""
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_calls_agree_with_the_reference(case: Case, region: str) -> None:
    # A whole layer goes by the median of its tokens: of fewer than four, one whose experts turn decides.
    found = layers("reference").compare(region, case, whole=len(case.positions) * case.tokens >= 4)
    print(*found.lines(past=False), sep="\n")
    assert not found.lines()


@pytest.mark.parametrize("region", CACHES)
@pytest.mark.parametrize("case", PACKED, ids=str)
def test_calls_agree_with_the_reference_on_packed_caches(case: Case, region: str) -> None:
    found = layers("packed").compare(region, case, whole=False)
    print(*found.lines(past=False), sep="\n")
    assert not found.lines()
