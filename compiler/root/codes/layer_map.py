"""Codes 3xx: the lists of the layer map, by themselves, and what must agree with them."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = (
    Code(
        "DSV301",
        "layer-out-of-range",
        "error",
        "a list names a layer that the backbone does not have",
        """\
Layers are zero-based: a backbone of `n_layers` layers has layers 0 to `n_layers - 1`. Draft (MTP) layers come after
them in a checkpoint and are not part of the backbone, so no list may name them.

What a list with such an entry was meant to say is unknown. Findings that would only follow from what the list lacks
are therefore left out until it is mended.

**Way out:** name the layer that was meant, or remove the entry.
""",
        bad="extends: toy\nlayers: {engram_layers: [1, 8]}\n",
        good="extends: toy\nlayers: {engram_layers: [1, 4]}\n",
    ),
    Code(
        "DSV302",
        "layer-named-twice",
        "error",
        "a list names a layer twice",
        """\
A layer either is a source or is not; naming it twice usually means that another layer was meant. A list that was
edited by hand and silently shortened would leave some layer reading a history it was never trained on, with all
shapes right.

**Way out:** remove one of the two entries, or name the layer that was meant.
""",
        bad="extends: toy\nlayers: {index_source_layers: [2, 4, 4, 5, 7]}\n",
        good="extends: toy\nlayers: {index_source_layers: [2, 4, 5, 7]}\n",
    ),
    Code(
        "DSV303",
        "list-not-ascending",
        "error",
        "a list of layers is not in ascending order",
        """\
Readers resolve to the *latest source at or before* them, so a list of sources reads as a sequence of takeovers;
written out of order it suggests another one. For `engram_layers` the order also decides numbers: the bucket primes
are handed out layer by layer in the order of the list, so swapping two layers rehashes both tables while every
length still agrees. That is why an unsorted engram list is refused too.

**Way out:** write the layers in ascending order (and `num_embeddings` with `engram_layers`).
""",
        bad="extends: toy\nlayers: {kv_source_layers: [5, 2]}\n",
        good="extends: toy\nlayers: {kv_source_layers: [2, 5]}\n",
    ),
    Code(
        "DSV304",
        "source-without-branch",
        "error",
        "a source sits on a layer with ratio 0",
        """\
Ratio 0 means that a layer attends to its window alone: it has no compressed branch, so it has neither a compressor
nor an indexer to be a source with. (Ratio 1 does have the branch: it compresses one to one.)

There is one finding a layer, whatever lists name it.

**Way out:** give the layer a ratio of 1 or more, or take it out of the source lists.
""",
        bad="extends: toy\nlayers: {kv_source_layers: [1, 2, 5], index_source_layers: [1, 2, 4, 5, 7]}\n",
        good="extends: toy\nlayers: {kv_source_layers: [2, 5], index_source_layers: [2, 4, 5, 7]}\n",
    ),
    Code(
        "DSV305",
        "engram-lists-disagree",
        "error",
        "`engram_layers` and `num_embeddings` have different lengths",
        """\
`engram.num_embeddings` gives the rows of the table of each engram layer, in the order of `layers.engram_layers`.

**Way out:** give one entry a layer.
""",
        bad="extends: toy\nengram: {num_embeddings: [462]}\n",
        good="extends: toy\nengram: {num_embeddings: [462, 630]}\n",
    ),
    Code(
        "DSV306",
        "engram-half-declared",
        "error",
        "engram layers without an engram section, or the other way round",
        """\
An engram needs both: the layers that have one (`layers.engram_layers`) and its sizes (`engram`). One without the
other would either fail when weights are bound or leave tables unread in silence.

**Way out:** add what is missing, or remove the other: a model without engram has no `engram` section (`engram:
null` over a base that has one) and no `engram_layers`.
""",
        bad="extends: toy\nlayers: {engram_layers: []}\n",
        good="extends: toy\nlayers: {engram_layers: []}\nengram: null\n",
    ),
    Code(
        "DSV307",
        "table-rows-differ",
        "error",
        "the rows of an engram table are not the sum of its bucket primes",
        """\
Each hash column of an engram layer has its own bucket: a prime number of rows. The primes are the successive primes
from `engram.vocab_size` on, `n_heads` for each n-gram size from 2 to `max_ngram_size`, layer after layer, none used
twice (nor by layers that a cut left out: DSV309). A table holds exactly these buckets one after the other, so its rows
are their sum. Other numbers mean another hash: rows would be fetched that were trained for other n-grams, and nothing
but the text would show it.

**Way out:** the help gives the expected rows; where they are what the checkpoint has, the hash sizes are wrong.
""",
        bad="extends: toy\nengram: {num_embeddings: [462, 631]}\n",
        good="extends: toy\nengram: {num_embeddings: [462, 630]}\n",
    ),
    Code(
        "DSV308",
        "engram-too-large",
        "error",
        "the engram has more hash buckets than are derived",
        """\
The hash constants are derived from the spec, at a cost that grows with engram layers times hash columns. The bound
is far above any known model; it keeps a hostile spec from keeping the compiler busy.

**Way out:** use fewer heads, n-gram sizes or engram layers.
""",
        bad="""\
extends: toy
layers: {engram_layers: [0, 1, 2, 3, 4]}
engram: {max_ngram_size: 16, n_heads: 1024, num_embeddings: [1, 2, 3, 4, 5]}
""",
        good="extends: toy\nengram: {max_ngram_size: 4, n_heads: 2}\n",
    ),
    Code(
        "DSV309",
        "hash-layers-disagree",
        "error",
        "`hash_layers` does not name one layer for each engram layer, ascending",
        """\
A model that `dsv41c cut` made of another keeps the hash that its tables were trained with. The numbers of that hash
come from the layers of the whole model: a layer's number seeds its multipliers, and its primes are those that were left
by the engram layers before it. `engram.hash_layers` has an entry for each engram layer, the number it had there; which
primes are its own, the rows of its table tell, which are their sum (DSV307).

**Way out:** give one number a layer, in the order of `layers.engram_layers`. A model that was never cut leaves
`hash_layers` out.
""",
        bad="extends: toy\nengram: {hash_layers: [1]}\n",
        good="extends: toy\nengram: {hash_layers: [1, 4]}\n",
    ),
)
