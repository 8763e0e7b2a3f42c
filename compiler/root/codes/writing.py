"""Codes 75x: checkpoints that are written. Each has a trigger in the tests."""

from __future__ import annotations

from typing import Literal

from dsv41c.codes.code import Code


def _code(
    code: str, name: str, summary: str, explanation: str, severity: Literal["error", "warning"] = "error"
) -> Code:
    return Code(code, name, severity, summary, explanation.strip() + "\n")


CODES: tuple[Code, ...] = (
    _code(
        "DSV750",
        "checkpoint-too-large",
        "the random checkpoint would be larger than allowed",
        """
The size is known before anything is written, and nothing is. The limit (8 GiB unless given) is there because real
specs come to hundreds of gigabytes.

**Way out**: cut the spec down to a few layers, or raise `--max-bytes`.
""",
    ),
    _code(
        "DSV751",
        "output-occupied",
        "the output folder is not empty, or cannot be written",
        """
A checkpoint is written beside its place and moved there when it is whole, so that no half of one is ever taken for a
checkpoint. It never replaces files. What a run that was killed left beside it goes with the next one to the same place.

**Way out**: name a folder that does not exist or is empty, inside one that does, on a disk with room.
""",
    ),
    _code(
        "DSV752",
        "vocabulary-impossible",
        "no tokenizer has these numbers of ids and distinct keys",
        """
The random tokenizer has exactly `vocab_size` ids and `compressed_vocab_size` distinct keys. Each special token has
a key of its own, and a token that shares a key needs another one to share it with.

**Way out**: choose `engram.compressed_vocab_size` above the number of special tokens and at most `vocab_size`.
""",
    ),
    _code(
        "DSV753",
        "encoding-impossible",
        "a weight's shape cannot be stored in its encoding",
        """
FP4 packs two elements a byte and `fp4_32` and `fp8_row32` scale 32 columns at a time, so these need matrices whose
rows are a multiple of 32 long.

**Way out**: change the width in the spec, or declare another encoding in its `weights` section.
""",
    ),
    _code(
        "DSV754",
        "cut-of-another-format",
        "a checkpoint that is no folder of safetensors is to be cut",
        """
`dsv41c cut --checkpoint` copies tensors from safetensors files to safetensors files, byte by byte. A GGUF file stores
them in an order and encoding of its own.

**Way out**: cut the checkpoint that the file was made of.
""",
    ),
    _code(
        "DSV755",
        "repack-of-another-format",
        "only checkpoints of safetensors are repacked",
        """
`dsv41c repack` moves the bytes of tensors that safetensors files hold. The blocks of a GGUF file mix codes and scales
in ways of their own, which no layout here has a place for.

**Way out**: run the plan on the GGUF file as it is, or repack the checkpoint that it was made of.
""",
    ),
    _code(
        "DSV756",
        "repack-differs",
        "a repacked checkpoint does not hold the values of the one it was made of",
        """
Before a repacked checkpoint appears, both sides are read again in another way than they were read and written, and
every element is decoded and compared. Something differed, so nothing was kept. The disk or its memory is at fault, or
this program.

**Way out**: run the same again. If it stays so, keep the old checkpoint and report it.
""",
    ),
)
