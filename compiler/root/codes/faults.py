"""Codes 840 to 846: what goes wrong while a step runs. No spec shows them; each has a trigger in the tests."""

from __future__ import annotations

from dsv41c.codes.code import Code


def _code(code: str, name: str, summary: str, explanation: str) -> Code:
    return Code(code, name, "error", summary, explanation.strip() + "\n")


CODES: tuple[Code, ...] = (
    _code(
        "DSV840",
        "op-failed",
        "the kernel of an op raised an error",
        """
The message names the op and the value that it was making, with the form that the plan says; the facts have the error's
own text, the layer, how the step ran (eager, or at warm-up, capture or replay of a graph), the stage, and whose tokens
at which positions. Where something made before has another shape or dtype than the plan says, a note names it and its
op: what failed is then only the first to mind. Of a call that covers several ops all are named. The step's sessions are
broken; those of a warm-up or capture are padding rows, so none is.

**Way out**: a plan that was edited: compile it again. A plan as compiled: this is a bug of a kernel; the message has
what a report needs, and `DSV41C_DEBUG=2` shows the way to where it was raised.
""",
    ),
    _code(
        "DSV841",
        "out-of-memory",
        "a device or the host has no memory left for a step",
        """
Weights and pools of state are allocated before the first step, so what is lacking is work space: it grows with the
tokens of a chunk, and at a capture with the largest bucket. Exit code 2.

**Way out**: a smaller `--chunk`, fewer sessions or a shorter `runtime.max_context`, smaller `runtime.decode_buckets`,
or less beside it on the device. `dsv41c estimate PLAN --device-memory SIZE` counts what a plan needs.
""",
    ),
    _code(
        "DSV842",
        "device-error",
        "a device reported an error",
        """
A device runs behind the host, so it tells of an error (an address that is not its own, a failed assertion) at some call
after the one that made it. The message says where it was noticed, and a note all regions that were asked for since the
device was last known to be well: the end of the last step that was waited for, or with `DSV41C_DEBUG=2` the end of the
region before. What a capture forbids is told where it is done. Exit code 2; after such an error a process can use its
device no more.

**Way out**: run it again with `--check-finite`, which captures nothing and waits for every op, so that the op is named;
or compile with `--set runtime.capture=off` and run with `CUDA_LAUNCH_BLOCKING=1` (`AMD_SERIALIZE_KERNEL=3` on ROCm). If
that names an op, report it; if it comes elsewhere every time, look at the machine.
""",
    ),
    _code(
        "DSV843",
        "kernel-not-compiled",
        "a native kernel cannot be compiled or launched here",
        """
Native kernels are compiled by Triton when they are first called: at warm-up, or in the first prompt. The compiler, or
the C compiler that it calls for launchers, is missing or refuses, or the device has less of something (shared memory)
than the kernel takes. Exit code 2.

**Way out**: look at the error's text. `dsv41c targets` lists the architectures that kernels are made for; a plan for
`--target cpu` needs none of them.
""",
    ),
    _code(
        "DSV844",
        "value-of-wrong-form",
        "an op made a value of another shape or dtype than the plan says, or in another place",
        """
The manifest says the shape and dtype of each value. What a region writes is held to it when a decode step is captured
and with `DSV41C_DEBUG=2`, what every op makes with `--check-finite`. A selection may be narrower than the plan says,
while there are fewer groups. Session state has to stay in its pool, where later steps look for it.

**Way out**: a plan that was edited: compile it again. Kernels of your own: hold them to the catalogue's signature. A
plan as compiled: this is a bug of a kernel; the message has what a report needs.
""",
    ),
    _code(
        "DSV845",
        "value-not-finite",
        "an op made NaN or an infinity",
        """
`--check-finite` looks at every value when it is made, at session state in the rows that an op writes. Scores of hidden
groups, padding rows and rows that nobody wrote do not count. The first value that is not finite is told: op, layer,
place in the spec, how many elements, the first of them with its session and position, and whether everything that the
op read was finite, weights too. If it was, this op made it. A call that covers several ops is run again op by op, to
name the one inside. `DSV41C_DEBUG=2` finds NaN region by region only.

**Way out**: inputs that were not finite are named: state that an earlier step left, or a weight. Where all were finite,
numbers are too large for the compute dtype, or a kernel is wrong: `--compare reference` holds it to plain ones.
""",
    ),
    _code(
        "DSV846",
        "weight-not-finite",
        "a weight holds NaN or an infinity",
        """
With `--check-finite` weights are looked at when they are loaded, and named as the checkpoint names them. -inf is fine
in attention sinks (no sink) and in router biases (an expert that is never chosen). NaN in a checkpoint is refused
without it too (DSV730).

**Way out**: fetch the file again, or export it again.
""",
    ),
)
