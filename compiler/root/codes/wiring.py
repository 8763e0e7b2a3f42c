"""Codes 42x and 43x: the wiring of a graph. No spec shows them, since the builder wires what the spec declares."""

from __future__ import annotations

from dsv41c.codes.code import Code

WIRING_CODES: tuple[Code, ...] = (
    Code(
        "DSV420",
        "value-without-producer",
        "error",
        "an op reads a value that no op writes",
        """\
Every read names the exact value it reads: one version of a state. A value is written by one op, or is there before
the call: token ids, and session state as `.before`. A read of anything else would find memory that nobody filled.

**Way out:** add the op that writes the value, or read one that is written.
""",
    ),
    Code(
        "DSV421",
        "two-producers",
        "error",
        "a value is written twice",
        """\
A value is one version of a state, written once. Two writers would make what a reader gets depend on the order of
ops. A state that is updated has a version for each write: `compress_kv@L20.before` and `compress_kv@L20`.

**Way out:** give one of the two values its own id.
""",
    ),
    Code(
        "DSV422",
        "read-before-written",
        "error",
        "an op reads a value that is written after it",
        """\
Ops run in the order in which the graph lists them.

**Way out:** put the writer before the reader.
""",
    ),
    Code(
        "DSV423",
        "op-does-not-fit",
        "error",
        "an op lacks a port, weight or attribute of its kind, or has one too many",
        """\
The catalogue says what each kind of op reads, writes and takes; kernels are called in exactly that form.

**Way out:** give the op the ports, weights and attributes of its kind; the finding lists them.
""",
    ),
    Code(
        "DSV424",
        "wrong-kind-at-port",
        "error",
        "a port gets a value of another kind or name",
        """\
Values of different kinds often have the same shape: `pre` and `post`, two selections, a query and an attended
value. A port takes one kind, and of temporaries one name.

**Way out:** read the value that the port is for.
""",
    ),
    Code(
        "DSV425",
        "writer-not-allowed",
        "error",
        "an op writes a kind of state that is not its to write",
        """\
Each kind of state has its authors: only `compress` appends to compressed KV, only `window_store` writes the ring.
Anything else that writes it breaks what readers rely on (rows only of complete groups, one row a position).

**Way out:** give the value the kind of the port that writes it.
""",
    ),
    Code(
        "DSV426",
        "private-value-read-elsewhere",
        "error",
        "an op reads a value that belongs to another sublayer",
        """\
Temporaries live inside one sublayer: `post` and `comb` are used by the sublayer that computed them and by no other.
The window ring and the open group of a compressor belong to one layer. Only streams, `pre` and the shared states
cross.

**Way out:** read the value of the op's own sublayer.
""",
    ),
    Code(
        "DSV427",
        "pre-mix-not-carried",
        "error",
        "a sublayer collapses the streams with another pre-mix than the one carried to it",
        """\
`pre` is carried: attention collapses the streams with the pre-mix made by the previous layer's FFN, the FFN with
the one made by its own layer's attention, the exit with the last FFN's. Taking the sublayer's own is the natural
mistake; the shapes agree, and the model answers with fluent nonsense.

**Way out:** read the carried `pre`; the finding names it.
""",
    ),
    Code(
        "DSV428",
        "streams-out-of-sequence",
        "error",
        "a sublayer reads other streams than those before it",
        """\
Every sublayer reads the streams that the one before it wrote, and writes the next version; an engram is one of
them.

**Way out:** read the version before it; the finding names it.
""",
    ),
    Code(
        "DSV429",
        "wrong-version-of-state",
        "error",
        "an op reads session state before or after the update it should see",
        """\
An update starts from what the session held (`.before`). Attention reads the window ring as it was before the call,
beside the call's own rows: a ring that was written first has lost the oldest rows that the chunk's first tokens
still see. Compressed KV and index keys are read after their update, since a query sees the groups that its own call
completes.

**Way out:** read the version that the finding names.
""",
    ),
    Code(
        "DSV430",
        "read-after-overwritten",
        "error",
        "an op reads a version of state whose memory is overwritten before it runs",
        """\
Session state is updated in place: `X` lives in the memory of `X.before`. Whoever reads `X.before` runs before the
op that writes `X`.

**Way out:** put the reader before the writer.
""",
    ),
    Code(
        "DSV431",
        "state-never-updated",
        "error",
        "session state is read and never updated",
        """\
State that is carried from call to call has an op that brings it up to date. Without it every call would find what
the session held when it was opened.

**Way out:** add the op that updates it.
""",
    ),
)
