"""Which device a plan runs on, and what is missing where it cannot."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.fusion import NATIVE_VARIANT
from dsv41c.runtime.device.cpu import CpuDevice
from dsv41c.runtime.device.graphs import GraphDevice
from dsv41c.runtime.device.protocol import Device
from dsv41c.runtime.device.rules import RULES
from dsv41c.runtime.device.strict import StrictDevice
from dsv41c.runtime.manifest import Manifest

_HPU_LIBRARY = "habana_frameworks"


def device_for(manifest: Manifest, *, name: str | None = None, strict: bool = False, checks: bool = False) -> Device:
    """A device of a plan that is runnable: the named one (`cuda:1`), without a name the first.

    With `strict`, the CPU under the rules of the plan's family.
    """
    family = manifest.target.family
    if strict:
        return StrictDevice(RULES[family])
    if family == "cpu":
        return CpuDevice()
    return GraphDevice(_index(name or manifest.target.devices[0]), checks=checks)


def not_runnable(manifest: Manifest, *, strict: bool = False, only: int | None = None) -> list[Diagnostic]:
    """The finding (DSV858) where a plan that compiles does not run here. `strict` needs no device.

    `only`: the number of the one device that this process drives; without it, those that the plan names.
    """
    family = manifest.target.family
    lacking = None if strict else missing(manifest, only)
    if lacking is None:
        return []
    return [
        Diagnostic(
            "DSV858",
            f"plan `{manifest.name}` compiles but does not run here: it is for {family} devices, and {lacking}",
            facts=(("target.family", family), ("target.devices", ", ".join(manifest.target.devices))),
            help="compile it for one CPU to run it here: `--target cpu`; DSV41C_STRICT=1 runs it by its family's rules",
        )
    ]


def kernel_variants(manifest: Manifest, *, strict: bool = False) -> tuple[str, str]:
    """The registry's variants that run a plan's eager steps and its captured ones.

    Native kernels where the plan says so, but for `strict`, which runs on the CPU.
    """
    native = _native_variant(manifest)
    return (native, native) if native is not None and not strict else ("reference", "static")


def _native_variant(manifest: Manifest) -> str | None:
    """The variant of a plan's native kernels, None where it names none."""
    variant = NATIVE_VARIANT.get(manifest.target.family)
    return variant if any(entry.kernel.partition(".")[0] == variant for entry in manifest.kernels) else None


def missing(manifest: Manifest, only: int | None = None) -> str | None:
    """What this machine lacks to run a plan's family, or None."""
    family = manifest.target.family
    if family == "cpu":
        return None
    if family == "hpu":
        found = find_spec(_HPU_LIBRARY) is not None
        return f"the runtime does not drive `{_HPU_LIBRARY}`" if found else f"`{_HPU_LIBRARY}` is not installed"
    build = "hip" if family == "rocm" else "cuda"
    if getattr(torch.version, build) is None:
        return f"torch {torch.__version__} is not built for {'ROCm' if family == 'rocm' else 'CUDA'}"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    count, last = torch.cuda.device_count(), max(_index(name) for name in manifest.target.devices)
    last = last if only is None else only
    if last >= count:
        return f"torch sees {count} GPUs, the plan is for number {last}"
    native = _native_variant(manifest)
    return f"its kernels need `{native}`, which is not installed" if native and find_spec(native) is None else None


def _index(name: str) -> int:
    """The number in a device's name, `cuda:1`."""
    return int(name.partition(":")[2] or 0)
