"""Codes 24x: cutting a model down. No spec shows them, so each has a trigger in the tests instead of examples here."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = (
    Code(
        "DSV240",
        "cut-loses-source",
        "error",
        "a cut keeps a layer and leaves out a layer that it reads from",
        """\
A layer reads compressed KV, index keys, a selection and candidate blocks of the layers that make them. Without its
source a kept layer would read another one's, or nothing: the latest source at or before it that is left. All shapes
would be right, and what the layer computes would be no part of the model. So a cut keeps every source of every layer
that it keeps.

**Way out:** the help names the smallest cut that has the layers asked for and every source of theirs. The other way is
to leave out the readers.
""",
    ),
    Code(
        "DSV241",
        "cut-of-other-layers",
        "error",
        "a cut names a layer that the model does not have",
        """\
`--layers` names the layers to keep, by their numbers in the spec that is cut. Layers are zero-based, and draft (MTP)
layers are not among them.

**Way out:** name layers of the spec.
""",
    ),
    Code(
        "DSV242",
        "cut-of-experts",
        "error",
        "a cut keeps fewer experts than a token uses, or more than there are",
        """\
`--experts N` keeps the first N routed experts of every layer, with the rows of the gate and the entries of its biases
that belong to them. A token then chooses among these, so there have to be at least `moe.n_activated_experts`.

**Way out:** a number from `moe.n_activated_experts` to `moe.n_routed_experts`.
""",
    ),
    Code(
        "DSV243",
        "cut-loses-readers",
        "error",
        "a cut keeps a source and leaves out every layer that reads from it",
        """\
A source usually reads what it makes itself. Where `layers.reads` sends it elsewhere, and the cut leaves out the layers
that read it, what it makes would be computed for nobody; a spec of that kind is refused (DSV409).

**Way out:** keep a reader too, or leave out the source.
""",
    ),
)
