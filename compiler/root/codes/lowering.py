"""Codes 6xx: ops and sizes that the target cannot run."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = (
    Code(
        "DSV601",
        "op-without-kernel",
        "error",
        "no kernel runs an op on the plan's devices",
        """
Every op of the graph is served by a kernel, and a kernel is for certain device families. The finding names the op,
its layers, the line of the spec that asks for it, the target, and the families that have a kernel. It is made by
`compile`, not by `validate`: the spec is right, this machine cannot run it, and it is better to hear of it now than at
the first request.

**Way out**: place the model on a family that the finding lists (`--target`), or take the feature out of the spec.
`dsv41c targets` lists every kind of op with the families that have a kernel for it.
""".lstrip(),
    ),
    Code(
        "DSV602",
        "value-beyond-kernel",
        "error",
        "a value of the spec is larger than the kernels of the plan's devices take",
        """
Plain torch takes every size that a spec may have; a native kernel is made of tiles, and may have a largest one. The
finding names the value, the limit, the op and the target. It is made by `compile`, not by `validate`: the spec is
right, this machine's kernels cannot run it, and it is better to hear of it now than at the first request.

**Way out**: give a value within the limit, or numerics that plain torch runs on these devices, such as
`numerics.compute: f32`. `dsv41c targets` lists the limits.
""".lstrip(),
    ),
)
