"""Weights of a plan without a checkpoint: made at full width where they are to be, encoded as checkpoints store them.

What is wide stays as wide. Fewer may be: `stored_experts` keeps the gate whole and gives every expert beyond the first
so many a bias that no token overcomes, so that ids are distinct and stored; engram tables get `TABLE_ROWS` rows, and
the hash is taken modulo less. Quantised weights are drawn as codes and scales, in place, so that making them takes no
memory beside them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dsv41c.kernels.encodings import ENCODINGS
from dsv41c.kernels.reference.encodings import Packed, Stacked, decode_e2m1, decode_e4m3, dense
from dsv41c.kernels.reference.engram import HeldTable, RowTable
from dsv41c.runtime.bench.bytes import row_bytes
from dsv41c.runtime.constants import make_constants
from dsv41c.runtime.manifest import EngramLayerEntry, Manifest, WeightEntry
from dsv41c.runtime.memory import TABLE, kept_bytes
from dsv41c.runtime.synth.values import scale_of
from dsv41c.runtime.weights.table import native_tables

TABLE_ROWS = 1 << 20  # 264 MiB a table with 256 channels: more than caches of devices hold
NEVER = -1.0e4  # the bias of an expert that is not stored
_CHUNK = 1 << 26  # elements whose codes are corrected at a time
_E8M0_ONE = 127
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def random_weights(
    manifest: Manifest,
    place: torch.device,
    *,
    stored_experts: int | None = None,
    table_rows: int = TABLE_ROWS,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, object]:
    """Every weight and constant of a plan by id, on `place`, as `Engine(weights=...)` takes them.

    `stored_experts`: at least the active ones, at most the routed; None for all. `progress(done, total)` in weights.
    """
    maker = _Maker(place, seed, stored_experts, table_rows, native_tables(manifest))
    weights: dict[str, object] = {}
    for number, entry in enumerate(manifest.weights, start=1):
        weights[entry.id] = maker.weight(entry)
        if progress is not None:
            progress(number, len(manifest.weights))
    constants = random_constants(manifest, table_rows, seed)
    return weights | {name: tensor.to(place) for name, tensor in constants.items()}


def held_bytes(manifest: Manifest, *, stored_experts: int | None = None, table_rows: int = TABLE_ROWS) -> int:
    """Bytes that these weights take."""
    total = 0
    for entry in manifest.weights:
        if entry.role == TABLE:
            total += min(entry.shape[0], table_rows) * row_bytes(entry)
        else:
            total += kept_bytes(entry, stored_experts if "{expert}" in entry.name else None)
    return total


# --- constants --------------------------------------------------------------------------------------------------------


def random_constants(manifest: Manifest, table_rows: int = TABLE_ROWS, seed: int = 0) -> dict[str, Tensor]:
    """The constants of a plan by id, on the host: as ever but for the token map, which takes no tokenizer here.

    Where tables are shorter than the plan's, the moduli and offsets of the hash are those of so many rows.
    """
    update: dict[str, object] = {"constants": [entry for entry in manifest.constants if entry.kind != "token_map"]}
    if manifest.engram is not None:
        layers = [_shorter(layer, table_rows) for layer in manifest.engram.layers]
        update["engram"] = manifest.engram.model_copy(update={"layers": layers})
    found = make_constants(manifest.model_copy(update=update), Path())  # without a token map nothing is read
    for entry in manifest.constants:
        if entry.kind == "token_map":
            assert manifest.engram is not None, "a plan with a token map has an engram section"
            drawn = torch.empty(manifest.model.vocab_size, dtype=torch.int64)
            found[entry.id] = drawn.random_(
                0, manifest.engram.compressed_vocab_size, generator=_generator(torch.device("cpu"), seed, entry.id)
            )
    return found


def _shorter(layer: EngramLayerEntry, table_rows: int) -> EngramLayerEntry:
    """The hash of one layer for a table of so many rows: an odd modulus for each column, each with rows of its own."""
    if sum(layer.primes) <= table_rows:
        return layer
    modulus = table_rows // len(layer.primes)
    modulus -= 1 - modulus % 2
    columns = range(len(layer.primes))
    return layer.model_copy(
        update={"primes": [modulus for _ in columns], "offsets": [column * modulus for column in columns]}
    )


# --- weights ----------------------------------------------------------------------------------------------------------


class _Maker:
    def __init__(
        self, place: torch.device, seed: int, stored_experts: int | None, table_rows: int, native_tables: bool
    ) -> None:
        self.place = place
        self.seed = seed
        self.stored_experts = stored_experts
        self.table_rows = table_rows
        self.native_tables = native_tables

    def weight(self, entry: WeightEntry) -> object:
        """A weight as kernels of the plan take it; each has a generator of its own, so their order is nothing."""
        generator = _generator(self.place, self.seed, entry.id)
        if "{expert}" in entry.name:
            return self._experts(entry, min(entry.count, self.stored_experts or entry.count), generator)
        if entry.role == "engram_table":
            return self._table(entry, generator)
        if entry.role == "gate_bias":
            bias = self._plain(entry, torch.float32, generator)
            if self.stored_experts is not None:
                bias[self.stored_experts :] = NEVER
            return bias
        return self._matrix(entry, generator)

    def _matrix(self, entry: WeightEntry, generator: torch.Generator) -> Tensor | Packed:
        wanted = _DTYPES.get(entry.dtype)
        if entry.stored in _DTYPES:
            stored = _DTYPES[entry.stored]
            return self._plain(entry, stored, generator).to(wanted or stored)
        packed = self._packed(entry, tuple(entry.shape), generator)
        return packed if wanted is None else dense(packed, wanted)

    def _experts(self, entry: WeightEntry, count: int, generator: torch.Generator) -> Stacked | list[Tensor | Packed]:
        if entry.stored == "fp4_32":
            codes, scale, encoding = self._packed(entry, (count, *entry.shape), generator)
            return Stacked(codes, scale, encoding)
        return [self._matrix(entry, generator) for _ in range(count)]

    def _table(self, entry: WeightEntry, generator: torch.Generator) -> RowTable:
        rows, columns = entry.shape
        codes, scale, _ = self._packed(entry, (min(rows, self.table_rows), columns), generator)
        if not self.native_tables:
            return HeldTable(codes, scale)
        from dsv41c.kernels.triton.engram import DeviceTable

        return DeviceTable(codes, scale)

    def _plain(self, entry: WeightEntry, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        mean, deviation = scale_of(entry.role, entry.shape)
        drawn = torch.empty(entry.shape, dtype=dtype, device=self.place)
        return drawn.normal_(mean, deviation, generator=generator)

    def _packed(self, entry: WeightEntry, shape: tuple[int, ...], generator: torch.Generator) -> Packed:
        """Codes and scales [..., rows, columns] of numbers with the standard deviation that the weight should have.

        Codes are drawn evenly, so their root mean square is that of all codes. Two neighbouring powers of two scale
        them, so that a scale read from the wrong place shows, as often as makes the deviation right.
        """
        encoding = ENCODINGS[entry.stored]
        four_bit = encoding.bits == 4
        size = (*shape[:-1], shape[-1] // 2) if four_bit else shape
        codes = torch.empty(size, dtype=torch.uint8, device=self.place)
        codes.random_(0, 256 if four_bit else 254, generator=generator)
        if not four_bit:
            for part in torch.split(codes.view(-1), _CHUNK):  # 127 and 255 are NaN: 0 to 253 become the 254 other codes
                part.add_((part >= 127).to(torch.uint8))
        exponent, share = _scales(scale_of(entry.role, entry.shape)[1] / _root_mean_square(four_bit))
        scale = torch.empty(encoding.scale_shape(shape), dtype=torch.uint8, device=self.place)
        scale.bernoulli_(share, generator=generator).add_(_E8M0_ONE + exponent)
        return Packed(codes, scale, entry.stored)


def _root_mean_square(four_bit: bool) -> float:
    """Of every code that is a number, each once."""
    byte = torch.arange(256).to(torch.uint8)
    values = decode_e2m1(byte) if four_bit else decode_e4m3(byte[(byte & 127) != 127])
    return math.sqrt(values.square().mean().item())


def _scales(wanted: float) -> tuple[int, float]:
    """The smaller exponent of two, and the share of the larger, with which the mean square is that of `wanted`."""
    exponent = math.floor(math.log2(wanted))
    return exponent, min(1.0, ((wanted / 2.0**exponent) ** 2 - 1) / 3)


def _generator(place: torch.device, seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator(place).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
