"""Codes 848 to 86x: sessions, token ids and text at run time. No spec shows them; each has a trigger in the tests."""

from __future__ import annotations

from dsv41c.codes.code import Code


def _code(code: str, name: str, summary: str, explanation: str) -> Code:
    return Code(code, name, "error", summary, explanation.strip() + "\n")


_SESSIONS = (
    _code(
        "DSV848",
        "foreign-state",
        "an op touched cached state that is not its session's own",
        """
With `DSV41C_DEBUG=2` every cached row carries the session that wrote it, the epoch of that session's slot, the position
or group that it holds, and the state that it was written for. Each op is held to them before it reads: a row of another
session, of an earlier use of the slot, of another position, or that nobody wrote is foreign. It is counted and, for
that read, zeros or no selection; the pools stay as they are. A captured step cannot mask, so it ends before it runs.
Without debugging such a read gives fluent tokens with another conversation in them. What is named is the first such row
of each op and state; followers of one cause may be among them.

**Way out**: code of a plan that was edited: compile it again. A plan as compiled: this is a bug in the runtime; the
message has what a report needs.
""",
    ),
    _code(
        "DSV849",
        "unknown-tail",
        "a name for rows of a prompt that is none",
        """
Where only the logits of a prompt's last token are wanted, `tail` says which rows are computed: `exact`, those that
these logits and the state after the prompt need; `every` one; or `bounded`, no more than a window's in the layers that
may leave rows out, which is an approximation.

**Way out**: give one of these names, or leave it out, which is `exact`.
""",
    ),
    _code(
        "DSV850",
        "token-id-out-of-range",
        "a token id is not in the plan's vocabulary",
        """
Ids go from 0 to `model.vocab_size` - 1. A negative id would be taken from the end of the embedding table and of the
token map, and one beyond the end would read whatever follows: both give fluent nonsense and no error, so the position
of the first bad id is named here and nothing is fed.

**Way out**: encode the text with the checkpoint's own tokenizer. Padding (-1) is never fed; a batch is padded by the
engine itself.
""",
    ),
    _code(
        "DSV851",
        "session-full",
        "more tokens than a session has room for",
        """
State pools are allocated once, for `runtime.max_context` tokens a session. Feeding more would overwrite or drop rows
that later tokens still select from. Nothing of the call is fed; the message says how many tokens still fit. To
generate n tokens takes room for n - 1 beyond the prompt, because the last one is not fed.

**Way out**: a shorter prompt or fewer tokens, `session.reset()`, or a plan compiled with a larger
`runtime.max_context` (at most `model.max_seq_len`).
""",
    ),
    _code(
        "DSV852",
        "no-free-session",
        "every session of the engine is open",
        """
An engine has `runtime.max_sessions` slots, and a fork takes one too.

**Way out**: close sessions that are done (`session.close()`, or open them in a `with`), or compile the plan with a
larger `runtime.max_sessions`.
""",
    ),
    _code(
        "DSV853",
        "session-closed",
        "a session is used after it was closed",
        """
A closed session's slot goes to the next one that opens. A handle kept beyond that would read and overwrite somebody
else's state, so each slot counts its starts (the epoch) and a handle of an earlier start is refused.

**Way out**: open a new session and feed its tokens again.
""",
    ),
    _code(
        "DSV854",
        "nothing-to-feed",
        "a call without any token",
        """
Logits belong to a token, so a call without tokens has none to return.

**Way out**: feed at least one id. The shortest prompt is BOS alone, which is what an empty text becomes.
""",
    ),
    _code(
        "DSV855",
        "foreign-session",
        "a session is used with another engine than the one that opened it",
        """
A session is a slot number and a length; its state is in the pools of the engine that opened it. In another engine the
same slot is another sequence, or none.

**Way out**: use `session.engine`, or feed the tokens to a session of the engine in hand.
""",
    ),
    _code(
        "DSV856",
        "session-unusable",
        "an earlier step of this session failed half-way",
        """
A step updates the state of one layer after the other in place. Where it ends early (out of memory, an interrupt, a
fault in a kernel) some layers have seen its tokens and others have not. Going on would give plausible, wrong tokens.

**Way out**: `session.reset()` and feed the tokens again, or close it. Other sessions are not affected.
""",
    ),
    _code(
        "DSV857",
        "session-twice-in-step",
        "one session comes twice in a batch",
        """
A decode step appends one token to each session of its batch, and all rows run at once: two rows of one session would
take the same position and overwrite each other.

**Way out**: decode the tokens of a session one step after the other, or feed them as a chunk.
""",
    ),
    _code(
        "DSV858",
        "plan-not-runnable",
        "the plan is for devices that are not here, or that this runtime does not drive yet",
        """
Plans compile for any placement and device family. This runtime runs them on the CPU and, where torch is built for them
and sees as many as the plan names, on CUDA and ROCm devices. A plan that names native kernels needs Triton there. HPU
devices are not driven yet. The message names what is missing.

**Way out**: compile the spec for one CPU (`dsv41c compile SPEC -o DIR --target cpu`) and run that. `DSV41C_STRICT=1`
runs a plan of any family on the CPU, by the rules of that family's graphs.
""",
    ),
    _code(
        "DSV859",
        "chunk-too-small",
        "a chunk of less than one token",
        """
A prompt is fed in chunks of `--chunk` tokens, at most `runtime.prefill_chunk`. Any size from 1 up gives the same
selections, and the same logits up to rounding.

**Way out**: leave it out, or give a number from 1 up.
""",
    ),
)

_TEXT = (
    _code(
        "DSV860",
        "sampling-out-of-range",
        "a sampling parameter is out of its range",
        """
Temperature is a finite number from 0 up, and 0 is greedy; top-p is above 0 and at most 1; a seed is from 0 to
9223372036854775807; the number of tokens is from 0 up. Other values have no meaning, or make probabilities NaN.

**Way out**: correct the value that is named.
""",
    ),
    _code(
        "DSV861",
        "tokenizer-unreadable",
        "the checkpoint's tokenizer is missing or broken",
        """
Text, and the n-gram hash of engram layers, need `tokenizer.json` beside the checkpoint's tensors. It is not there, or
the `tokenizers` library cannot read it.

**Way out**: copy it from the release that the tensors come from. A file of a few hundred bytes is a pointer left by a
clone without large files.
""",
    ),
    _code(
        "DSV862",
        "text-not-unicode",
        "a prompt or message that is not Unicode text",
        """
The text holds a lone surrogate, which no encoding of text can write. Bytes of a command line that are not UTF-8 come in
as such, and so does half of a `\\ud83d\\ude00` pair of JSON. No token stands for it.

**Way out**: give the text in UTF-8; a terminal in another encoding needs its locale set (`LC_ALL=C.UTF-8`).
""",
    ),
    _code(
        "DSV863",
        "special-token-missing",
        "the tokenizer lacks special tokens of the chat format",
        """
The chat format is made of special tokens (`<｜User｜>`, `<｜Assistant｜>`, `</think>`, ...). Where the tokenizer does
not know one, its name would be encoded letter by letter, which the model never saw in training.

**Way out**: `--prompt` instead of `--chat`, or the tokenizer.json of the release.
""",
    ),
    _code(
        "DSV864",
        "message-not-expressible",
        "a conversation that the text chat format cannot express",
        """
Messages have a role (system, user, tool, assistant) and text. An assistant's turn follows a user's, reasoning effort is
from 1 to 100, and user text does not contain `<｜deepseek_image｜>`, which stands for an image and is refused by the
released encoder too. Tool definitions and calls are not supported here.

**Way out**: correct the message that is named.
""",
    ),
    _code(
        "DSV865",
        "result-not-writable",
        "a result cannot be written where it should go",
        """
The folder of a result has to exist and be writable. This is looked at before the run, so that no work is lost, and a
result is written to a temporary file first: a file of that name is either the old one or the whole new one.

**Way out**: make the folder, or name another file.
""",
    ),
    _code(
        "DSV866",
        "differs-from-reference",
        "a value of the plan is not what the reference computes",
        """
`--compare reference` runs the manifest's ops on the plain kernels beside the plan, each step from the plan's own state
and inputs. The first value that leaves its bound is where the difference is made, not where it shows: floats may differ
by 1e-5 (plans in f32) or 2^-7 (in bf16) of the value's largest magnitude, integers and selections not at all.

**Way out**: an edited plan: compare the region with the ops of the manifest. A plan as compiled: this is a bug in a
kernel or in the compiler; the message has what a report needs.
""",
    ),
    _code(
        "DSV867",
        "value-unknown",
        "no value, op or layer of that name is in the plan",
        """
Values are named `streams@L4.ffn`, `topk@L6` or `logits`, ops `layers.4.attn.attend`. `manifest.json` of the plan lists
them, and `dsv41c graph` prints them.

**Way out**: one of the near names in the message.
""",
    ),
    _code(
        "DSV868",
        "logits-not-finite",
        "no token can be chosen because logits are NaN or infinite",
        """
NaN compares with nothing, so a maximum over it is arbitrary and generation would go on with nonsense. NaN in logits
comes from weights (a scale of the wrong kind, a damaged file) or from an overflow.

**Way out**: `dsv41c validate SPEC --checkpoint DIR`, then `--compare reference` to see whether the plan or the weights
make them; `--check-finite` names the op that makes the first one.
""",
    ),
    _code(
        "DSV869",
        "code-out-of-step",
        "a plan's code calls other kernels than its manifest lists",
        """
States of a run are recorded by the order of a region's ops: the i-th call is the i-th op. Code that was edited and
calls kernels in another order cannot be recorded, because values would get each other's names.

**Way out**: compile the plan again, or run without `--states-out` and `--compare`.
""",
    ),
)

CODES: tuple[Code, ...] = (*_SESSIONS, *_TEXT)
