from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler.engram_hash import derivable, hash_constants, is_prime, multipliers, primes_from
from dsv41c.compiler.pcg64 import Pcg64


@dataclass
class Sizes:
    max_ngram_size: int = 4
    n_heads: int = 8
    vocab_size: int = 16_000_000
    compressed_vocab_size: int = 99_092


def test_flash_constants():
    first, second = hash_constants(Sizes(), [1, 14])
    assert first.multipliers == (76632096046245, 4839876093313, 35959672319349, 73987337458391)
    assert second.multipliers == (67716810739261, 51510806800915, 30921347202721, 82619226485591)
    assert first.primes[:8] == (16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183)
    assert first.primes[-1] == 16000463
    assert second.primes[-8:] == (16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889)
    assert (first.rows, second.rows) == (384006168, 384016682)
    assert first.offsets[:3] == (0, 16000057, 32000136) and first.offsets[-1] == 368005705
    assert second.offsets[-1] == 368015793


def test_small_constants():
    first, second = hash_constants(Sizes(4, 2, 64, 64), [1, 4])
    assert first.multipliers == (118650432209603643, 7493640653728489, 55676810147952557, 114555519428547269)
    assert second.multipliers == (127364524771245009, 7800076361716407, 114038564133282483, 29348051253447937)
    assert first.primes == (67, 71, 73, 79, 83, 89) and first.rows == 462
    assert second.primes == (97, 101, 103, 107, 109, 113) and second.rows == 630
    assert first.offsets == (0, 67, 138, 211, 290, 373)
    assert second.offsets == (0, 97, 198, 301, 408, 517)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**160), st.integers(1, 2**63))
def test_stream_is_numpys(seed, bound):
    stream = Pcg64(seed)
    expected = np.random.default_rng(seed).integers(0, bound, size=6, dtype=np.int64)
    assert [stream.below(bound) for _ in range(6)] == expected.tolist()


@pytest.mark.parametrize("bound", [1, 2, 3, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**62 + 1, 2**63])
def test_stream_is_numpys_at_the_edges(bound):
    for seed in range(20):
        stream = Pcg64(seed)
        expected = np.random.default_rng(seed).integers(0, bound, size=7, dtype=np.int64)
        assert [stream.below(bound) for _ in range(7)] == expected.tolist()


def test_primes_equal_a_sieve():
    sieve = bytearray([1]) * 20_000
    sieve[:2] = b"\0\0"
    for number in range(2, 142):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(sieve[number * number :: number]))
    assert [n for n in range(20_000) if is_prime(n)] == [n for n, flag in enumerate(sieve) if flag]
    # strong pseudoprimes to the first bases, and primes beside powers of two
    assert not any(map(is_prime, (3215031751, 4759123141, 3474749660383, 341550071728321, 3825123056546413051)))
    assert is_prime(2**40 + 15) and is_prime(2**61 - 1)
    assert next(primes_from(2**40)) == 2**40 + 15
    assert next(primes_from(-5)) == 2


def test_bounds():
    assert derivable(Sizes(), 2)
    assert not derivable(Sizes(n_heads=10**9), 2)
    assert not derivable(Sizes(vocab_size=10**30), 2)
    assert multipliers(1, 4, 10**30) == (1, 1, 1, 1)
