"""Codes 7xx: checkpoints. No spec shows them, so each has a trigger in the tests instead of examples here."""

from __future__ import annotations

from typing import Literal

from dsv41c.codes.code import Code


def _code(
    code: str, name: str, summary: str, explanation: str, severity: Literal["error", "warning"] = "error"
) -> Code:
    return Code(code, name, severity, summary, explanation.strip() + "\n")


_FILES = (
    _code(
        "DSV700",
        "checkpoint-absent",
        "no checkpoint can be read at this path",
        """
A checkpoint is a folder with `model.safetensors.index.json` and its shards, a folder of `.safetensors` files, one
such file, or a GGUF file (of a split set any part, or a folder that holds the set alone). There is none at the
path, or the system does not let it be read.

**Way out**: give the folder that the download made. A folder of pointers (a few hundred bytes a file) is a clone
without its large files.
""",
    ),
    _code(
        "DSV701",
        "header-malformed",
        "a file does not start with a safetensors header",
        """
A safetensors file starts with 8 bytes of length and a JSON object that gives every tensor a `dtype`, a `shape` and
`data_offsets`. Here the length is beyond 100,000,000 bytes, the text is not UTF-8 or JSON, a name is there twice,
or an entry lacks a part. Nothing of such a file is believed, since a header that lies about one tensor moves all
others.

**Way out**: fetch or export the file again. A file that is really an error page or a pointer shows up here too.
""",
    ),
    _code(
        "DSV702",
        "dtype-unknown",
        "a tensor has a dtype that is unknown here",
        """
The header names a dtype that this tool cannot size, so neither the tensor nor what follows it can be checked.
Six-bit floats (`F6_E2M3`, `F6_E3M2`) are among them.

**Way out**: export the tensor in one of the encodings of the spec's `weights` section, or as BF16 or F32.
""",
    ),
    _code(
        "DSV703",
        "shard-truncated",
        "a shard is shorter than its header says",
        """
The file ends before the tensors that its header describes. Mapping such a file reads zeros or leftovers past the
end, and the model then talks nonsense from the first token without any error. All short shards are in one report.

**Way out**: fetch the named shards again and compare their sizes with the publisher's.
""",
    ),
    _code(
        "DSV704",
        "tensor-extent",
        "a tensor's bytes do not fit its shape or its neighbours",
        """
The tensors of a file follow each other without overlap, hole or rest, and each spans exactly the bytes of its dtype
and shape. The format's own reader demands the same. A tensor that breaks this was written by a broken tool or
edited.

**Way out**: export the file again.
""",
    ),
    _code(
        "DSV705",
        "index-malformed",
        "the index file cannot be read",
        """
`model.safetensors.index.json` is a JSON object whose `weight_map` gives every tensor name the name of its shard.
This one is not, or names a tensor twice.

**Way out**: fetch the index again, or remove it: without an index every `.safetensors` file of the folder is read.
""",
    ),
    _code(
        "DSV706",
        "index-leaves-folder",
        "the index names a file outside its folder",
        """
A shard is named by a plain file name ending in `.safetensors`. An absolute path, a `..` or a subfolder would let a
downloaded index make this tool open files elsewhere, so such a name is refused and never opened. (A file of the
folder may be a link; download caches are made of those.)

**Way out**: put the shards beside the index and name them plainly.
""",
    ),
    _code(
        "DSV707",
        "shard-absent",
        "a shard is not there",
        """
The download is not complete, or a shard was renamed: the index names it, or other parts of a split GGUF file number
it. Tensors of absent shards are not reported as missing one by
one.

**Way out**: fetch the named shards.
""",
    ),
    _code(
        "DSV708",
        "index-disagrees",
        "index and headers tell different stories",
        """
The index lists a tensor in a shard whose header does not have it, or a shard holds a tensor that the index does not
list or lists elsewhere. One of them is from another version of the checkpoint, and nothing says which.

**Way out**: fetch index and shards of one revision, or make the index again from the shards.
""",
    ),
    _code(
        "DSV709",
        "tensor-in-two-shards",
        "two shards hold the same tensor",
        """
Which of the two would be used depends on the order of reading. Usually the shards of two downloads lie in one
folder.

**Way out**: remove the shards that do not belong.
""",
    ),
    _code(
        "DSV710",
        "prefixes-mixed",
        "tensor names use more than one prefix",
        """
Official names have no prefix; wrappers add `model.`, `language_model.` or both, and all are read. Two of them in
one checkpoint, or one tensor in two spellings, means that two models were merged into one folder. Only the
tensors of the text backbone are compared; vision towers and drafts may be spelled their own way.

**Way out**: keep the tensors of one of them.
""",
    ),
    _code(
        "DSV711",
        "merged-tensor-indivisible",
        "a tensor cannot be what its name says it holds",
        """
Some layouts put several matrices into one tensor: all experts of a layer, the gate and up matrices one after the
other, or a table's codes and scales in one row. This one has a shape that does not come apart so: the wrong number
of dimensions, an odd number of rows, or halves that cut through the blocks which share a scale.

**Way out**: export the tensor in the shape that its name stands for, or one tensor for each matrix.
""",
    ),
    _code(
        "DSV712",
        "layout-declaration",
        "a checkpoint declares a layout that is unknown here, or two",
        """
How the rows of a merged tensor lie, and which nibble of a byte comes first, cannot be seen in the data. The usual way
is taken (gate before up, low nibble first) unless the metadata of the index or of a file declares another with a key
that begins with `dsv41c.`: `dsv41c.gate_up` and `dsv41c.nibbles`. It then holds for the whole checkpoint. A key that is
not known may change what the data means, so it is not passed over.

**Way out**: declare one of the known values, the same in every file, or remove the key.
""",
    ),
)

_MATCH = (
    _code(
        "DSV720",
        "tensor-missing",
        "the plan needs a tensor that the checkpoint lacks",
        """
Every weight of the plan is bound to exactly one tensor. A missing one is never replaced by zeros. When the tensors
of a whole layer are missing, or one role in many layers, that is one finding.

**Way out**: if the names belong to a compressor or indexer, compare `kv_source_layers` and `index_source_layers` of
the spec with the checkpoint's config: only source layers have these tensors. Otherwise fetch the shard they are in.
""",
    ),
    _code(
        "DSV721",
        "tensor-unexpected",
        "the checkpoint holds a tensor that the plan does not use",
        """
A tensor that no part of the plan reads means that the spec describes another model: a layer that is a KV source in
the checkpoint and not in the spec, say. Families that the text backbone leaves unread (`mtp.`, `vision.`,
`aligner.`, `image_`, `gate.bias_vl`) are counted, not reported.

**Way out**: correct the layer map of the spec, or remove the tensors from the checkpoint.
""",
    ),
    _code(
        "DSV722",
        "tensor-misshapen",
        "a tensor has another shape than the plan needs",
        """
Shapes follow from the widths in the spec. Packed FP4 weights (I8 or U8) are two elements a byte, so their last
dimension is half the logical one.

**Way out**: correct the width in the spec, or use the checkpoint that belongs to it.
""",
    ),
    _code(
        "DSV723",
        "encoding-refused",
        "a tensor is stored in an encoding that its role does not accept",
        """
The plan lists for each role the encodings that bind without loss: the one that the spec's `weights` section
declares, and BF16 and F32. The encoding is that of the file's dtype together with the spec's word for it: E4M3 data
does not say whether its scales go by block or by row. Scales are E8M0, stored as `F8_E8M0` or as raw `U8`. FP4 codes
with the high nibble first, which a checkpoint declares, are in an order that no kernel reads; `dsv41c repack` changes
it.

**Way out**: correct the `weights` section of the spec, or convert the checkpoint.
""",
    ),
    _code(
        "DSV724",
        "scale-missing",
        "a quantised tensor has no scale",
        """
FP8 and FP4 codes mean nothing without their scale: used bare they are wrong by factors of thousands, and the model
still runs. The scale is looked for as `.scale` (the release), `.weight_scale` and `.weight_scale_inv`, all of which
multiply.

**Way out**: export the scale along with the weight.
""",
    ),
    _code(
        "DSV725",
        "scale-misshapen",
        "a scale has another shape than the declared encoding needs",
        """
`fp8_32x32` has one scale a 32 x 32 block, `fp8_row32` and `fp4_32` one a 32 columns of each row. The spec says
which it is; the shape is checked against that and never used to guess.

**Way out**: if all tensors of the role disagree, correct the spec's `weights` section.
""",
    ),
    _code(
        "DSV726",
        "scale-in-two-spellings",
        "a tensor has two scales",
        """
Two of the spellings of a scale stand beside one weight, and nothing says which holds.

**Way out**: remove one.
""",
    ),
    _code(
        "DSV727",
        "scale-without-codes",
        "a scale stands beside a tensor that is not quantised",
        """
BF16 and F32 tensors are used as they are, so the scale would be ignored. Either the tensor was dequantised and its
scale left behind, or it was cast without being scaled, which makes it wrong by orders of magnitude.

**Way out**: remove the scale if the tensor is already scaled; otherwise export it again.
""",
    ),
    _code(
        "DSV728",
        "expert-count",
        "the checkpoint has another number of experts than the plan",
        """
Experts are numbered from 0, one by one or in a tensor of all. Reading the first few of a larger set would run, with a
router trained for another number.

**Way out**: set `moe.n_routed_experts` to the checkpoint's number.
""",
    ),
)

_VALUES = (
    _code(
        "DSV730",
        "value-not-a-number",
        "a stored value is not a number, or too large for any float",
        """
An E8M0 byte of 255 and an E4M3 code with its low seven bits set are NaN; one of them spreads to every logit. Dense
tensors are checked when they are bound. Expert scales are checked then too, up to 1 GiB of them, and beyond that
when an expert is first used. Engram rows are checked as they are read, since the tables are too large to read
whole; where a GPU reads them itself (`engram.storage: device`, `host`), all are checked when they are loaded.

**Way out**: the file is damaged or was exported wrongly; fetch or export it again.
""",
    ),
    _code(
        "DSV731",
        "conversion-loses",
        "a stored value does not survive the plan's compute type",
        """
Binding converts only without loss. BF16 fits into F32 always; an F32 tensor is taken for BF16 compute only if each
of its values is a BF16 value (a dequantised FP8 tensor is).

**Way out**: compile with `numerics.compute: f32`, or store the tensor as BF16 and so decide about the rounding.
""",
    ),
    _code(
        "DSV732",
        "checkpoint-changed",
        "a file changed after its header was read",
        """
The file has another size than when the checkpoint was checked, or can no longer be opened. What the header promised
may not be there any more.

That is looked at when weights are loaded. A file that is cut later, while a run has it mapped, ends the process with
SIGBUS (`Bus error`) and no finding: the system has no other way to say so.

**Way out**: wait until the download or export is finished and run again.
""",
    ),
)

_CONFIG = (
    _code(
        "DSV734",
        "config-other-model",
        "a checkpoint's config.json says of its model what the spec does not",
        """
The tensors fit, and beside them lies a config.json that tells another model: another clamp, rope, epsilon, source
layer. Where that is a slip, everything runs and every number is wrong. It is a warning, since a spec may differ on
purpose. Left out are the context length, draft layers, and where tables are kept. A config.json that does not tell its
whole model is not held to anything.

**Way out**: `dsv41c import DIR/config.json` gives the spec that the checkpoint tells.
""",
        "warning",
    ),
)

_TABLES = (
    _code(
        "DSV733",
        "table-read-failed",
        "rows of an engram table cannot be read any more",
        """
Tables stay in the checkpoint's files, and their rows are read while a model runs (`engram.storage: mapped` or `disk`).
The file was opened and fitted; since then it was cut or replaced, or the disk reports an error. The step that needs
the rows ends with this finding, and its sessions are broken; nothing is computed from rows that were not read.

A file that is cut in the moment in which a mapped row is read ends the process, as the system has no other way to say
so. `disk` has no such moment.

**Way out**: leave the files as they are while they are in use. After a disk error, check the file against the
publisher's checksum, or keep the tables in memory: `engram.storage: host`.
""",
    ),
)

_TOKENIZER = (
    _code(
        "DSV740",
        "tokenizer-vocabulary",
        "the tokenizer's ids are not those of the model",
        """
The engram hash needs the text of every token id from 0 to `vocab_size - 1`. This tokenizer has more ids, fewer, or
gaps.

**Way out**: use the `tokenizer.json` that belongs to the checkpoint.
""",
    ),
    _code(
        "DSV741",
        "compressed-vocabulary",
        "the tokenizer gives another number of distinct keys than the spec says",
        """
Engram ids are hashed from compressed token ids: tokens whose normalised text is equal share one. Their number
enters the hash constants, so a single difference moves every row of the tables.

**Way out**: use the `tokenizer.json` that belongs to the checkpoint, or correct `engram.compressed_vocab_size`.
""",
    ),
)

CODES: tuple[Code, ...] = (*_FILES, *_MATCH, *_VALUES, *_CONFIG, *_TABLES, *_TOKENIZER)
