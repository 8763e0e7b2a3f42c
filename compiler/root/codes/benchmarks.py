"""Codes 88x: what a benchmark cannot measure. Each has a trigger in the tests."""

from __future__ import annotations

from dsv41c.codes.code import Code


def _code(code: str, name: str, summary: str, explanation: str) -> Code:
    return Code(code, name, "error", summary, explanation.strip() + "\n")


CODES: tuple[Code, ...] = (
    _code(
        "DSV880",
        "bench-batch-too-large",
        "a benchmark of more sessions than the plan has",
        """
A step of a batch takes a session for each of its rows, and an engine has `runtime.max_sessions` of them. The batch need
not be one of `runtime.decode_buckets`: a benchmark captures its steps for itself.

**Way out**: a smaller `--batch`, or a plan compiled with a larger `runtime.max_sessions`.
""",
    ),
    _code(
        "DSV881",
        "bench-context-too-long",
        "a benchmark of more tokens than a session of the plan holds",
        """
State pools hold `runtime.max_context` tokens a session. A context is what a session holds after the last step of a
turn, so one of exactly `runtime.max_context` can be measured; so can a prompt (`--prefill`).

**Way out**: a smaller `--context`, or a plan compiled with a larger `runtime.max_context`.
""",
    ),
    _code(
        "DSV882",
        "bench-arm-unknown",
        "a benchmark has no such arm",
        """
Arms are ways to run the same step: `layer` (a graph for each layer), `all` (one graph), `eager` (the same kernels
without graphs) and `torch` (plain torch ops on dense weights). On the CPU nothing is captured, so the first two are
null there.

**Way out**: the near name in the message, or leave `--arms` out for all of them.
""",
    ),
    _code(
        "DSV883",
        "bench-experts-out-of-range",
        "random weights of too few or too many experts",
        """
`--stored-experts N` makes N experts a layer and gives the others, of which only the gate's row is there, a bias that
keeps them from being chosen. A token needs as many as it activates, and there is no gate row for more than are routed.

With one session a step moves the same bytes whatever N is. With more it does not: fewer experts are distinct. The
result says how many were, and holds times against that.

**Way out**: a number in the range that the message gives.
""",
    ),
    _code(
        "DSV884",
        "bench-too-large",
        "weights and state of the plan do not fit into the memory of the device",
        """
What the manifest says of weights and state pools of a device is more than it has free (on the CPU: than the machine
has). It is refused before anything is made, since running out of memory ends processes on some machines. With
`--against`, the first device also has all of the other plan.

**Way out**: `--stored-experts N` for random weights of fewer experts, or a plan compiled with fewer tokens and sessions
(`runtime.max_context`, `runtime.max_sessions`).
""",
    ),
    _code(
        "DSV885",
        "bench-not-comparable",
        "a plan cannot be measured against this one",
        """
`bench PLAN --against OTHER` runs the same steps on both, by turns, and gives their ratio: what stages or shards cost,
or gain, against one device. That says something only of the same model, compiled with the same numerics,
capture and storage of tables (for prompts: chunks) for the same family of devices, with OTHER on one of them: the first
process runs it while the others wait.

**Way out**: compile the same spec once more, with `placement.devices` of one device and without `tensor_parallel`.
""",
    ),
)
