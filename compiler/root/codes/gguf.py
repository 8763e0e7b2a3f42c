"""Codes 760 to 771: GGUF checkpoints. No spec shows them, so each has a trigger in the tests instead of examples."""

from __future__ import annotations

from dsv41c.codes.code import Code


def _code(code: str, name: str, summary: str, explanation: str) -> Code:
    return Code(code, name, "error", summary, explanation.strip() + "\n")


CODES: tuple[Code, ...] = (
    _code(
        "DSV760",
        "gguf-header-malformed",
        "the header of a GGUF file cannot be read",
        """
A GGUF file starts with `GGUF`, a version, numbers of tensors and keys, the keys and the tensors. Read are versions 2
and 3 in little-endian order, headers of up to 100,000,000 bytes, 65,536 keys and 1,048,576 tensors; `general.alignment`
is a power of two, arrays hold numbers or strings, and no key is there twice. The finding says at which byte the header
breaks off. Nothing of such a file is believed, since a header that lies in one place moves all that follows.

**Way out**: fetch or export the file again.
""",
    ),
    _code(
        "DSV761",
        "gguf-architecture",
        "the GGUF file is of another architecture",
        """
Read are files whose `general.architecture` is exactly `deepseek41`, and whose keys have this prefix. `deepseek4` is
another architecture, with a compressor in every layer; some early converters wrote this model's tensors or keys under
that name, and left hash constants out, so that such a file cannot be made right by reading it otherwise.

**Way out**: use a file of this architecture.
""",
    ),
    _code(
        "DSV762",
        "gguf-family-unread",
        "the GGUF file is of a family that is not read",
        """
Several converters write this architecture, and spell keys and tensors differently. Files are told apart by their own
keys and tensors. Of some families it is not known what all their names are or how they store engram tables or hash
constants. These are refused by name: a guess that is wrong gives fluent nonsense.

**Way out**: use the safetensors release, or an export of another converter.
""",
    ),
    _code(
        "DSV763",
        "gguf-type-unread",
        "a GGUF tensor has a type that is not read",
        """
Read are F32, F16, BF16, MXFP4, Q4_0 to Q8_0, Q2_K to Q6_K and the IQ and TQ types; I8 for engram tables whose layout
the file describes. Types from 43 on have no meaning: forks use the same number for different formats.

**Way out**: export the tensor in another type.
""",
    ),
    _code(
        "DSV764",
        "gguf-keys-missing",
        "a GGUF file lacks keys that the model needs",
        """
Without its primes, multipliers or token map nobody can tell which rows of the engram tables a file was written for; the
spec's would be taken, and where they differ, every row is a wrong one. For `import` the file has to say all sizes of
the model too. All missing keys are in one finding. Offsets may be left out: they follow from the primes.

**Way out**: export the file again with a converter that writes them.
""",
    ),
    _code(
        "DSV765",
        "gguf-hash-differs",
        "a GGUF file was written for another engram hash",
        """
Primes, offsets and multipliers follow from the spec, and the token map from the tokenizer. The file's own are compared
with these, number by number. Multipliers take 64 bits; an array of narrower integers cut them off.

**Way out**: use the file that belongs to the spec (`dsv41c import FILE.gguf` writes one), or export it again.
""",
    ),
    _code(
        "DSV766",
        "gguf-engram-table",
        "an engram table of a GGUF file is absent, of another size, or of an unknown layout",
        """
Every engram layer has a table, and the table as many rows as its buckets take. Tables of type I8 hold FP8 codes and
scales: both in each row, as `engram.encoding` says, or the scales in an I8 tensor beside, one for 32 columns. Others
are not guessed at. A file without its tables (`engram.present` false) is not the model.

**Way out**: use a file with all tables in a layout that is read.
""",
    ),
    _code(
        "DSV767",
        "gguf-layers-differ",
        "a GGUF file gives layers different numbers where the model has one",
        """
Keys such as `expert_count` or `swiglu_clamp_exp` may hold an array with a number for each layer. The model has one for
all layers, and the same clamp for routed and shared experts.

**Way out**: use a file in which all layers are alike.
""",
    ),
    _code(
        "DSV768",
        "gguf-foreign-tensors",
        "a GGUF file holds tensors of the older architecture",
        """
`output_hc_*`, `attn_compressor_ape` and `ffn_gate_tid2eid` belong to the architecture before this one, which computes
with them. A file that has them is not of this model, whatever its name says.

**Way out**: use a file of this model.
""",
    ),
    _code(
        "DSV769",
        "gguf-tokenizer",
        "the tokenizer of a GGUF file cannot be read",
        """
Read are byte-level BPE vocabularies (`tokenizer.ggml.model` is `gpt2`) with tokens and merges, whose rule for splitting
text (`tokenizer.ggml.pre`) is known by name. The token map of the engram hash needs the tokens only; text needs the
rule too.

**Way out**: use a file with the model's tokenizer. Token ids (`--ids`) work without a known rule.
""",
    ),
    _code(
        "DSV770",
        "gguf-split-disagrees",
        "the parts of a split GGUF checkpoint do not belong together",
        """
Each part of `NAME-00001-of-00012.gguf` and so on says its number, the number of parts and the number of tensors in all.
Here these disagree with the names or with what the parts hold, as when parts of two exports lie in one folder.

**Way out**: fetch all parts of one revision.
""",
    ),
    _code(
        "DSV771",
        "gguf-other-model",
        "a GGUF file says of its model what the spec does not",
        """
A GGUF file tells its whole model in keys: widths, layers, sources, rope, clamps, routing. Where tensors fit all the
same, a value that differs runs, and every number is wrong from there on. So the keys are held to the spec, in
`validate --checkpoint` and in `run`. Left out are the context length, draft layers, and where tables are kept.

**Way out**: `dsv41c import FILE.gguf` gives the spec that the file tells. If yours is right, the file is of another
model.
""",
    ),
)
