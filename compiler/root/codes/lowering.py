"""Codes 6xx: ops that the target cannot run."""

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
)
