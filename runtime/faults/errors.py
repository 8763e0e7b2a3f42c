"""What an exception says about its kind: memory, the device, a kernel's compiler, or the op itself."""

from __future__ import annotations

import torch

from dsv41c.report.escape import escape

DEVICE = "DSV842"
# Characters of an error's text, the middle left out, since compilers say what matters at the end: where it is a fact,
# and in a message.
_LONGEST, _SHORT = 480, 160
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "hiperroroutofmemory")
_OF_DEVICE = ("cuda error", "hip error", "triton error", "cublas", "hipblas", "cudnn", "miopen", "nccl error")
_ACCELERATOR: tuple[type[Exception], ...] = tuple(filter(None, [getattr(torch, "AcceleratorError", None)]))

_WAYS = {
    "DSV840": "compile the plan again if it was edited; if it was not, report this, it is a bug of a kernel",
    "DSV841": "fewer or shorter sessions, a smaller `--chunk`, or less beside it; `dsv41c estimate` counts memory",
    "DSV842": (
        "run it again with `--check-finite`, which waits for every op and so names the one; or compile with "
        "`runtime.capture: off` and run with CUDA_LAUNCH_BLOCKING=1 (AMD_SERIALIZE_KERNEL=3 on ROCm). "
        "After such an error a process can use its device no more"
    ),
    "DSV843": "look for the first error of the compiler in the text; `dsv41c targets` lists what kernels are made for",
}
_CAPTURE = "keep waiting for the device out of captured work; DSV41C_STRICT=1 names the operation, on the CPU"


def code_of(error: BaseException) -> str:
    """The code for what a kernel, or the device, raised: DSV840 to DSV843."""
    text = str(error).lower()
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in text for words in _NO_MEMORY):
        return "DSV841"
    if type(error).__module__.partition(".")[0] == "triton":
        return "DSV843"
    if isinstance(error, _ACCELERATOR) or (
        isinstance(error, RuntimeError) and any(each in text for each in _OF_DEVICE)
    ):
        return DEVICE
    return "DSV840"


def is_late(error: BaseException) -> bool:
    """Whether work before may have made an error of the device. What a capture forbids is told where it is done."""
    return code_of(error) == DEVICE and "captur" not in str(error).lower()


def said(error: BaseException) -> str:
    """An error's kind and text for a message: in one line, cut to what a person would read, and safe to print."""
    return _cut(error, _SHORT).rstrip(".")


def said_in_full(error: BaseException) -> tuple[tuple[str, str], ...]:
    """More of an error's text, as a fact, where a message has not all of it."""
    text = _cut(error, _LONGEST)
    return (("error", text),) if text.rstrip(".") != said(error) else ()


def _cut(error: BaseException, longest: int) -> str:
    text = escape(" ".join(str(error).split()))
    if len(text) > longest:
        text = f"{text[: longest // 2]} ... {text[-longest // 2 :]}"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def way_out(code: str, error: BaseException | None = None) -> str:
    """The way out of an error, by its code."""
    if code == DEVICE and error is not None and not is_late(error):
        return _CAPTURE
    return _WAYS[code]
