"""The stream of `numpy.random.default_rng(seed).integers(0, bound, dtype=int64)`, in plain Python.

Engram multipliers are defined by that stream, and numpy does not promise to keep it for ever; this module pins it.
SeedSequence and PCG64 (XSL-RR 128/64) are M. O'Neill's designs with numpy's constants; bounded integers are Lemire's.
"""

from __future__ import annotations

_MASK32, _MASK64, _MASK128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_POOL_SIZE = 4


def _mixed_pool(entropy: int) -> list[int]:
    """SeedSequence's pool: every word of the entropy affects every word of the pool."""
    words = [entropy & _MASK32]
    while entropy := entropy >> 32:
        words.append(entropy & _MASK32)
    constant = 0x43B0D7E5

    def hashed(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & _MASK32
        value = value * constant & _MASK32
        return value ^ value >> 16

    def mixed(left: int, right: int) -> int:
        result = (0xCA01F9DD * left - 0x4973F715 * right) & _MASK32
        return result ^ result >> 16

    pool = [hashed(words[index] if index < len(words) else 0) for index in range(_POOL_SIZE)]
    for source in range(_POOL_SIZE):
        for target in range(_POOL_SIZE):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for word in words[_POOL_SIZE:]:
        pool = [mixed(value, hashed(word)) for value in pool]
    return pool


def _seed_words(entropy: int) -> list[int]:
    """SeedSequence(entropy).generate_state(4, uint64)."""
    pool, constant, words = _mixed_pool(entropy), 0x8B51F9DD, []
    for index in range(8):
        value = pool[index % _POOL_SIZE] ^ constant
        constant = constant * 0x58F38DED & _MASK32
        value = value * constant & _MASK32
        words.append(value ^ value >> 16)
    return [low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)]


class Pcg64:
    """numpy's `default_rng(seed)`, as far as bounded 64-bit integers go."""

    def __init__(self, seed: int) -> None:
        """Seed as numpy does. `seed` is a non-negative integer of any size, else ValueError."""
        if seed < 0:
            raise ValueError(f"seed {seed} is negative")
        state_high, state_low, stream_high, stream_low = _seed_words(seed)
        self._increment = ((stream_high << 64 | stream_low) << 1 | 1) & _MASK128
        self._state = 0
        self._step()
        self._state = (self._state + (state_high << 64 | state_low)) & _MASK128
        self._step()
        self._spare: int | None = None

    def _step(self) -> None:
        self._state = (self._state * _MULTIPLIER + self._increment) & _MASK128

    def _next64(self) -> int:
        self._step()
        word, turn = (self._state >> 64 ^ self._state) & _MASK64, self._state >> 122
        return (word >> turn | word << (-turn & 63)) & _MASK64

    def _next32(self) -> int:
        """The low half of a 64-bit word, then its high half."""
        if self._spare is not None:
            word, self._spare = self._spare, None
            return word
        whole = self._next64()
        self._spare = whole >> 32
        return whole & _MASK32

    def below(self, bound: int) -> int:
        """The next integer of `integers(0, bound, dtype=int64)`; 1 <= bound <= 2**63.

        A bound of 1 draws nothing; up to 2**32 numpy draws half words.
        """
        if bound == 1:
            return 0
        if bound == 1 << 32:
            return self._next32()
        bits, draw = (32, self._next32) if bound < 1 << 32 else (64, self._next64)
        # Lemire's method: the few low products that would make some results likelier are drawn again.
        threshold = (1 << bits) % bound
        while True:
            product = draw() * bound
            if product & ((1 << bits) - 1) >= threshold:
                return product >> bits
