"""Codes 4xx: state that is read and not produced, produced twice, never read, or of another history."""

from __future__ import annotations

from dsv41c.codes.code import Code
from dsv41c.codes.wiring import WIRING_CODES

_SHARED: tuple[Code, ...] = (
    Code(
        "DSV401",
        "reader-without-source",
        "error",
        "a layer reads compressed KV, no KV source at or before it",
        """\
`compress_ratios[l]` says what a layer *reads*: with a ratio of 1 or more it attends to compressed KV as well as to
its window. It does not say who makes it; `kv_source_layers` does. A layer reads the latest KV source at or before
it, so the first layer with a ratio above 0 must itself be a KV source, or come after one.

Layers with the same cause are listed in one finding.

**Way out:** make the first of them a KV source (and an index source), or set their ratio to 0.
""",
        bad="extends: toy\nlayers: {compress_ratios: [0, 2, 2, 2, 2, 1, 1, 1]}\n",
        good="extends: toy\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1]}\n",
    ),
    Code(
        "DSV402",
        "reader-without-selection",
        "error",
        "a layer reads a selection, no index source at or before it",
        """\
A layer with a compressed branch attends to the groups that an index source selected: the latest one at or before
it. Since every KV source must select (DSV404), a spec that lacks a selection is reported there; this code is for
graphs.

**Way out:** add the KV source that the layer reads to `index_source_layers`.
""",
    ),
    Code(
        "DSV403",
        "ratio-differs-from-source",
        "error",
        "a layer's ratio differs from that of the source it reads",
        """\
A row of a history stands for a group of as many tokens as the *source's* ratio. A reader of another ratio would
take row 7 for other tokens, see groups before they are complete or never, and rotate by other positions. All shapes
agree.

There is one finding a source, listing its readers.

**Way out:** give the readers the source's ratio, or start a history of their ratio with a KV source of their own.
""",
        bad="extends: toy\nlayers: {compress_ratios: [0, 0, 2, 2, 1, 1, 1, 1]}\n",
        good="extends: toy\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1]}\n",
    ),
    Code(
        "DSV404",
        "source-without-selection",
        "error",
        "a KV source makes no selection",
        """\
A KV source starts a new history. The selection in force was made over the old one: its group numbers mean nothing
in the new history, and index keys come from the compressor of a layer that is in *both* lists. So every KV source
is also an index source.

**Way out:** add the layer to `index_source_layers`, or take it out of `kv_source_layers`.
""",
        bad="extends: toy\nlayers: {index_source_layers: [4, 5, 7]}\n",
        good="extends: toy\nlayers: {index_source_layers: [2, 4, 5, 7]}\n",
    ),
    Code(
        "DSV405",
        "selection-of-another-history",
        "error",
        "a selection is used on another history than the one it was made over",
        """\
A selection is a list of group numbers. It was made by scoring the keys of one KV source and only means something in
that source's compressed KV. Using it across the next KV source reads whatever happens to have the same numbers
there.

Without `layers.reads` this cannot happen where every KV source selects (DSV404).

**Way out:** in `layers.reads`, name a selection and a history that belong together.
""",
        bad="extends: toy\nlayers: {reads: {6: {topk: 4}}}\n",
        good="extends: toy\nlayers: {reads: {6: {topk: 5}}}\n",
    ),
    Code(
        "DSV406",
        "index-source-without-keys",
        "error",
        "an index source has no keys to score",
        """\
An index source scores the index keys of the latest layer, at or before it, that is both a KV source and an index
source. The owner follows the KV list, because keys derive from the compressor's latent: an index source that is no
KV source owns no keys and reads another layer's. A spec that lacks keys is reported as DSV401 or DSV404; this code
is for graphs.

**Way out:** put a layer at or before it in both lists.
""",
    ),
    Code(
        "DSV407",
        "candidate-source-without-keys",
        "error",
        "the candidate source is not both a KV source and an index source",
        """\
The candidate source scores all groups of a history and keeps the best blocks; later index sources select inside
them. It needs scores, so it is an index source, and its blocks must index the history that begins with it, so it is
a KV source.

Any ratio of 1 or more will do. One public reader also wants ratio 1, as the release has it; nothing in the
computation depends on that, so we do not.

**Way out:** name a layer that is in both lists, or leave out `candidate_source_layer`.
""",
        bad="extends: toy\nlayers: {candidate_source_layer: 7}\n",
        good="extends: toy\nlayers: {candidate_source_layer: 5}\n",
    ),
    Code(
        "DSV408",
        "candidates-of-another-history",
        "error",
        "candidate blocks mask scores over another history or ratio",
        """\
Candidate blocks are runs of consecutive groups of the candidate source's history. Every later index source masks
its scores with them. One that scores the keys of a later KV source, or groups of another ratio, would mask other
tokens than the blocks were chosen for.

**Way out:** make the last KV source the candidate source, or do without one.
""",
        bad="extends: toy\nlayers: {candidate_source_layer: 2}\n",
        good="extends: toy\nlayers: {candidate_source_layer: 5}\n",
    ),
    Code(
        "DSV409",
        "state-never-read",
        "error",
        "a layer makes state that no layer reads",
        """\
State is made for its readers. What nobody reads was meant for a layer that now reads something else, or costs
memory and time for nothing; either way the spec does not say what was meant.

**Way out:** let a layer read it (`layers.reads` may have re-sourced its readers), or take its producer out of the
list.
""",
        bad="extends: toy\nlayers: {reads: {7: {topk: 5}}}\n",
        good="extends: toy\nlayers: {index_source_layers: [2, 4, 5, 7]}\n",
    ),
    Code(
        "DSV410",
        "candidates-never-read",
        "warning",
        "no index source comes after the candidate source",
        """\
Candidate blocks are read by later index sources only. Without one the blocks are computed and dropped. The result
is right, so this is a warning.

**Way out:** leave out `candidate_source_layer`.
""",
        bad="extends: toy\nlayers: {index_source_layers: [2, 4, 5]}\n",
        good="extends: toy\nlayers: {index_source_layers: [2, 4, 5, 7]}\n",
    ),
    Code(
        "DSV411",
        "read-of-a-later-layer",
        "error",
        "`layers.reads` names a layer that makes the state after it is read",
        """\
Layers run in order. A read can name its own layer or an earlier one; of candidate blocks only an earlier one, since
the candidate source chooses its blocks from the scores that the mask would apply to.

**Way out:** name an earlier source, or remove the entry.
""",
        bad="extends: toy\nlayers: {reads: {3: {topk: 4}}}\n",
        good="extends: toy\nlayers: {reads: {3: {topk: 2}}}\n",
    ),
    Code(
        "DSV412",
        "read-of-a-missing-producer",
        "error",
        "`layers.reads` names a layer that does not make the state",
        """\
Compressed KV is made by the layers of `kv_source_layers`, selections by those of `index_source_layers`, index keys
by those in both lists, candidate blocks by `candidate_source_layer`.

**Way out:** name one of them, or remove the entry to read the latest one at or before the layer.
""",
        bad="extends: toy\nlayers: {reads: {6: {compress_kv: 3}}}\n",
        good="extends: toy\nlayers: {reads: {6: {compress_kv: 5}}}\n",
    ),
    Code(
        "DSV413",
        "read-that-is-not-made",
        "error",
        "`layers.reads` gives a layer a source of state that it does not read",
        """\
Compressed KV and selections are read by layers with a ratio of 1 or more, index keys by index sources, candidate
blocks by index sources. An entry for another layer would have no effect, so it is refused rather than ignored.

**Way out:** remove the entry.
""",
        bad="extends: toy\nlayers: {reads: {1: {compress_kv: 0}}}\n",
        good="extends: toy\nlayers: {reads: {3: {compress_kv: 2}}}\n",
    ),
)

CODES: tuple[Code, ...] = (*_SHARED, *WIRING_CODES)
