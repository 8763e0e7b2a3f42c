"""The cache of rows: what it gives is what was fetched, it keeps what comes again, and its size is bounded."""

from threading import Thread

import numpy as np
import pytest
import torch

from dsv41c.runtime.weights.row_cache import RowCache

ROWS, WIDTH = 1000, 24
WHOLE = torch.arange(ROWS * WIDTH).remainder(251).to(torch.uint8).view(ROWS, WIDTH)


def fetch(ids):
    return WHOLE[ids]


def unique(generator, count, high=ROWS):
    return torch.from_numpy(np.sort(generator.choice(high, count, replace=False)).astype(np.int64))


@pytest.mark.parametrize("budget", [0, 100, 320, 5000, 1 << 20])
def test_rows_are_those_that_were_fetched(budget):
    cache, generator = RowCache(budget, WIDTH, ROWS), np.random.default_rng(1)
    for _ in range(60):
        ids = unique(generator, int(generator.integers(1, 200)))
        assert torch.equal(cache.read(ids, fetch), WHOLE[ids])
    assert cache.bytes <= budget
    assert bool(cache.lookups.hits) == (budget >= 320)


def test_it_takes_no_more_than_the_table_has():
    assert RowCache(1 << 40, WIDTH, 16).bytes == 16 * (WIDTH + 16)


def test_what_came_last_stays():
    cache = RowCache(8 * (WIDTH + 16), WIDTH, ROWS)  # one set of eight
    for number in (*range(8), 0, 8):
        cache.read(torch.tensor([number]), fetch)
    before = cache.lookups.misses
    cache.read(torch.tensor([0, 8]), fetch)
    assert cache.lookups.misses == before
    cache.read(torch.tensor([1]), fetch)  # the one that was asked for longest ago made room
    assert cache.lookups.misses == before + 1


def test_lookups_are_counted():
    cache = RowCache(1 << 20, WIDTH, ROWS)
    cache.read(torch.tensor([1, 2, 3]), fetch)
    assert cache.lookups.rate == 0.0
    asked = []
    cache.read(torch.tensor([2, 3, 4, 5]), lambda ids: asked.append(ids.tolist()) or fetch(ids))
    assert asked == [[4, 5]] and (cache.lookups.hits, cache.lookups.misses) == (2, 5)
    assert RowCache(0, WIDTH, ROWS).lookups.rate is None


def test_what_cannot_be_fetched_is_not_kept():
    cache = RowCache(1 << 20, WIDTH, ROWS)

    def broken(ids):
        raise OSError

    with pytest.raises(OSError):
        cache.read(torch.tensor([1, 2]), broken)
    assert torch.equal(cache.read(torch.tensor([1, 2]), fetch), WHOLE[:3][1:])
    assert cache.lookups.hits == 0


def test_threads_share_it():
    cache, wrong = RowCache(6000, WIDTH, ROWS), []

    def work(seed):
        generator = np.random.default_rng(seed)
        for _ in range(150):
            ids = unique(generator, 40, 300)
            if not torch.equal(cache.read(ids, fetch), WHOLE[ids]):
                wrong.append(seed)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.lookups.hits + cache.lookups.misses == 4 * 150 * 40
