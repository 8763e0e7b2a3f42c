"""The constants of the engram hash: bucket primes, row offsets and multipliers of each engram layer.

A checkpoint does not hold them; they follow from the spec as the released model derives them. The layer number, not its
place in the list, seeds the multipliers; the place in the list decides the primes, since none is handed out twice.

A model that was cut keeps the constants of the whole one: `hash_layers` names the layers of that which its engram
layers were, for the multipliers, and the rows of their tables tell the primes, since they are the sum of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Protocol

from dsv41c.compiler.pcg64 import Pcg64

# Beyond these the constants are not derived: enough for 1,300 layers like the release's, two seconds of work at most.
MAX_BUCKETS = 1 << 15
MAX_BUCKET_SIZE = 1 << 40
_INT64_MAX = (1 << 63) - 1
_SEED_PER_LAYER = 10007
_SMALL_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
# Miller-Rabin with these bases is exact below these bounds (Jaeschke 1993; Sorenson and Webster 2015).
_BASES = ((4_759_123_141, (2, 7, 61)), (3_474_749_660_383, (2, 3, 5, 7, 11, 13)), (1 << 64, _SMALL_PRIMES[:12]))


class EngramSizes(Protocol):
    """What the hash takes from a spec's engram section."""

    @property
    def max_ngram_size(self) -> int:
        """Longest n-gram that is hashed."""

    @property
    def n_heads(self) -> int:
        """Hash heads for each n-gram size."""

    @property
    def vocab_size(self) -> int:
        """Where the search for bucket primes starts."""

    @property
    def compressed_vocab_size(self) -> int:
        """Distinct ids after the token map."""


@dataclass(frozen=True, slots=True)
class LayerHash:
    """Hash constants of one engram layer.

    `multipliers` has one odd int64 for each position of an n-gram, newest first. `primes` and `offsets` have a column
    for each n-gram size from 2 up and head, in that order: row = hash mod prime + offset.
    """

    layer: int
    multipliers: tuple[int, ...]
    primes: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of the layer's table: the sum of its bucket primes."""
        return sum(self.primes)


def columns(engram: EngramSizes) -> int:
    """Hash columns of a layer: one for each n-gram size from 2 up and head."""
    return (engram.max_ngram_size - 1) * engram.n_heads


def derivable(engram: EngramSizes, layers: int) -> bool:
    """Whether the constants of that many layers are within the bounds that are derived."""
    return columns(engram) * layers <= MAX_BUCKETS and engram.vocab_size <= MAX_BUCKET_SIZE


def is_prime(number: int) -> bool:
    """Whether a number below 2**64 is prime; exact."""
    if number < 2:
        return False
    for prime in _SMALL_PRIMES:
        if number % prime == 0:
            return number == prime
    bases = next(bases for bound, bases in _BASES if number < bound)
    twos = (number - 1 & 1 - number).bit_length() - 1
    return all(_passes(number, base, (number - 1) >> twos, twos) for base in bases)


def _passes(number: int, base: int, odd: int, twos: int) -> bool:
    """One Miller-Rabin round; number - 1 == odd * 2**twos."""
    power = pow(base, odd, number)
    if power in (0, 1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def primes_from(start: int) -> Iterator[int]:
    """The primes from `start` on, ascending."""
    number = max(start, 2)
    if number == 2:
        yield 2
    number |= 1
    while True:
        if is_prime(number):
            yield number
        number += 2


def multipliers(layer: int, count: int, compressed_vocab_size: int) -> tuple[int, ...]:
    """Odd multipliers of a layer, so small that a compressed id times one of them fits int64."""
    bound = max(1, _INT64_MAX // compressed_vocab_size // 2)
    stream = Pcg64(_SEED_PER_LAYER * layer)
    return tuple(stream.below(bound) * 2 + 1 for _ in range(count))


def hash_constants(
    engram: EngramSizes,
    engram_layers: Sequence[int],
    hash_layers: Sequence[int] | None = None,
    num_embeddings: Sequence[int] = (),
) -> tuple[LayerHash, ...]:
    """The constants of every engram layer, in the order of the list.

    The released code restarts its search at the bucket size for every n-gram size and skips what was handed out; that
    is one walk over the primes. Ask `derivable` first: the cost grows with layers times columns.

    With `hash_layers`, as many, those of a cut model: the walk passes over the primes of layers that were left out,
    those whose sum is below the layer's rows in `num_embeddings`. At most MAX_BUCKETS primes are looked at.
    """
    walk, width = primes_from(engram.vocab_size), columns(engram)
    spare = 0 if hash_layers is None else MAX_BUCKETS // width - len(engram_layers)  # layers that may be passed over
    constants = []
    for index, (layer, seed) in enumerate(zip(engram_layers, hash_layers or engram_layers, strict=True)):
        primes = tuple(islice(walk, width))
        while spare > 0 and sum(primes) < num_embeddings[index]:
            primes, spare = tuple(islice(walk, width)), spare - 1
        offsets = tuple(accumulate(primes[:-1], initial=0)) if primes else ()
        odd = multipliers(seed, engram.max_ngram_size, engram.compressed_vocab_size)
        constants.append(LayerHash(layer, odd, primes, offsets))
    return tuple(constants)
