"""What a GGUF file says beside its tensors: the keys of its family, and constants of the hash it was written for.

Whoever runs the model derives these constants from the spec, as for every checkpoint. A file that holds others was made
for another hash, and its tables would be read at the wrong rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.gguf.families import PREFIX, Family
from dsv41c.runtime.weights.gguf.header import Value

WIDE = ("u64", "i64")
_HELP = "use the file that belongs to the spec, or export it again"


class HashedLayer(Protocol):
    """Hash constants of one engram layer, as derived."""

    @property
    def layer(self) -> int:
        """The layer's number in the model."""

    @property
    def multipliers(self) -> Sequence[int]:
        """One for each position of an n-gram."""

    @property
    def primes(self) -> Sequence[int]:
        """One for each hash column."""

    @property
    def offsets(self) -> Sequence[int]:
        """One for each hash column."""


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """The keys of a file (of a split set, of its first part), and its family.

    `file` is the plain name of the file. `tables` are rows and row widths of the engram tables by layer, `layers_with`
    the layers that have a tensor, by its name after `blk.N.`.
    """

    file: str
    family: Family
    keys: Mapping[str, Value]
    tables: Mapping[int, tuple[int, int]]
    layers_with: Mapping[str, tuple[int, ...]]

    def key(self, parameter: str) -> str | None:
        """The full key that holds a parameter, of those that the family has for it; None where the file has none."""
        names = self.family.parameters.get(parameter) or self.family.constants.get(parameter) or ()
        return next((PREFIX + name for name in names if PREFIX + name in self.keys), None)

    def integers(self, parameter: str) -> Sequence[int] | None:
        """An array of whole numbers; None where there is none or it is something else."""
        value = self.keys.get(self.key(parameter) or "")
        if value is None or not value.is_array or not isinstance(value.data, array) or value.data.typecode in "fd":
            return None
        return value.data  # type: ignore[return-value]

    @property
    def engram_layers(self) -> tuple[int, ...]:
        """The layers that the keys say have engrams; those with tables where the keys say nothing."""
        given = self.integers("engram_layer_ids")
        return tuple(self.tables) if given is None else tuple(given)

    def own_findings(self, refused: Collection[int] = ()) -> list[Diagnostic]:
        """What is wrong with the constants whatever the spec: what lacks, and what contradicts the file itself.

        `refused` are layers whose tables are there and were refused.
        """
        if not self.tables and not self.engram_layers:
            return []
        lacks = [
            self._first_name(part) for part in ("multipliers", "primes", "token_map") if self.integers(part) is None
        ]
        if lacks:
            listed = ", ".join(f"`{name}`" for name in lacks)
            text = f"hash constants are missing or no arrays of whole numbers: {listed}"
            help_text = "export the file again with all constants of the hash"
            return [Diagnostic("DSV764", text, Span(self.file), help=help_text)]
        return [*self._narrow(), *self._layers_disagree(refused), *self._counts(), *self._short_tables()]

    def contradictions(self, layers: Sequence[HashedLayer]) -> list[Diagnostic]:
        """Where the file's constants are not those derived from a spec."""
        if any(self.integers(part) is None for part in ("multipliers", "primes")) or not self.tables:
            return []
        wrong = []
        for part in ("multipliers", "primes"):
            derived = [number for layer in layers for number in getattr(layer, part)]
            wrong += _differs(part, list(self.integers(part) or ()), [derived], layers)
        rows = [sum(layer.primes) for layer in layers]
        offsets = [[offset for layer in layers for offset in layer.offsets]]
        starts = accumulate(rows[:-1], initial=0)  # of tables that lie one after the other in one tensor
        offsets += [[start + offset for start, layer in zip(starts, layers, strict=False) for offset in layer.offsets]]
        given = self.integers("offsets")
        if given is not None:  # else they are derived
            wrong += _differs("offsets", list(given), offsets, layers)
        return [Diagnostic("DSV765", text, Span(self.file), help=_HELP) for text in wrong]

    def wrong_token_map(self, derived: Sequence[int]) -> list[Diagnostic]:
        """Where the file's token map is not the one derived from its tokenizer."""
        given = self.integers("token_map")
        if given is None or list(given) == list(derived):
            return []
        if len(given) != len(derived):
            text = f"the token map has {len(given):,} entries, and the vocabulary {len(derived):,}"
        else:
            token = next(token for token, (one, two) in enumerate(zip(given, derived, strict=True)) if one != two)
            text = f"the token map has {given[token]:,} for token {token:,}, and the tokenizer gives {derived[token]:,}"
        return [Diagnostic("DSV765", text, Span(self.file), help=_HELP)]

    def _first_name(self, parameter: str) -> str:
        names = self.family.parameters.get(parameter) or self.family.constants[parameter]
        return self.key(parameter) or PREFIX + names[0]

    def _narrow(self) -> Iterable[Diagnostic]:
        key = self.key("multipliers")
        if key is not None and self.keys[key].kind not in WIDE:
            text = f"`{key}` is an array of {self.keys[key].kind}, and a multiplier does not fit: it takes 64 bits"
            yield Diagnostic("DSV765", text, Span(self.file), help="export the file again with 64-bit multipliers")

    def _layers_disagree(self, refused: Collection[int]) -> Iterable[Diagnostic]:
        with_table = sorted({*self.tables, *refused})
        by_name = (layers for name, layers in self.layers_with.items() if name.startswith("engram_"))
        with_any = sorted({layer for layers in by_name for layer in layers}) or with_table
        if not set(self.engram_layers) == set(with_table) == set(with_any):
            told = f"`{self._first_name('engram_layer_ids')}` is {list(self.engram_layers)}"
            text = f"{told}, layers {with_table} have engram tables, and layers {with_any} engram tensors of any kind"
            help_text = "export the file again with tables and keys that agree"
            yield Diagnostic("DSV766", text, Span(self.file), help=help_text)

    def _counts(self) -> Iterable[Diagnostic]:
        """Arrays that do not go evenly into layers, and maps of another vocabulary than they say."""
        count = len(self.engram_layers)
        for part in ("multipliers", "primes", "offsets"):
            numbers = self.integers(part)
            if numbers is not None and (not count or not numbers or len(numbers) % count):
                text = f"`{self.key(part)}` has {len(numbers)} entries for {count} engram layers"
                yield Diagnostic("DSV765", text, Span(self.file), help=_HELP)
        mapped = self.integers("token_map") or ()
        compressed = self.keys.get(self.key("engram_compressed_vocab_size") or "")
        if compressed is not None and compressed.data != max(mapped, default=-1) + 1:
            text = f"the token map goes up to {max(mapped, default=-1):,}, and `engram.compressed_vocab_size` is "
            yield Diagnostic("DSV765", text + f"{compressed.data}", Span(self.file), help=_HELP)

    def _short_tables(self) -> Iterable[Diagnostic]:
        primes, count = self.integers("primes") or (), len(self.engram_layers)
        if not count or len(primes) % count:
            return
        width = len(primes) // count
        for place, layer in enumerate(self.engram_layers):
            rows, needed = self.tables.get(layer, (0, 0))[0], sum(primes[place * width : (place + 1) * width])
            if layer in self.tables and rows != needed:
                text = f"the engram table of layer {layer} has {rows:,} rows, and its buckets take {needed:,}"
                yield Diagnostic("DSV766", text, Span(self.file), help=_HELP)


def _differs(part: str, given: list[int], derived: list[list[int]], layers: Sequence[HashedLayer]) -> list[str]:
    """What to say where an array is none of those that may be."""
    if given in derived:
        return []
    expected = min(derived, key=lambda each: sum(one != two for one, two in zip(given, each, strict=False)))
    if len(given) != len(expected):
        return [f"the file has {len(given)} {part} of the hash, and the spec gives {len(expected)}"]
    at = next(at for at, (one, two) in enumerate(zip(given, expected, strict=True)) if one != two)
    width = len(expected) // max(1, len(layers))
    where = f"{part}[{at % width}] of layer {layers[at // width].layer}"
    count = sum(one != two for one, two in zip(given, expected, strict=True))
    more = f" ({count} of {len(given)} differ)" if count > 1 else ""
    return [f"{where} of the hash is {given[at]} in the file, and the spec gives {expected[at]}{more}"]
