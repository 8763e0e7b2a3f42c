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


def device_for(manifest: Manifest, *, strict: bool = False, checks: bool = False) -> Device:
    """The device of a plan that is runnable; with `strict`, the CPU under the rules of the plan's family."""
    family = manifest.target.family
    if strict:
        return StrictDevice(RULES[family])
    if family == "cpu":
        return CpuDevice()
    return GraphDevice(_index(manifest), checks=checks)


def not_runnable(manifest: Manifest, *, strict: bool = False) -> list[Diagnostic]:
    """The finding (DSV858) where a plan that compiles does not run here. `strict` needs no device."""
    family, stages = manifest.target.family, len(manifest.stages)
    lacking = None if strict else missing(manifest)
    reasons = [f"it is for {family} devices, and {lacking}"] if lacking is not None else []
    reasons += [f"it has {stages} stages ({', '.join(manifest.target.devices)})"] if stages > 1 else []
    if not reasons:
        return []
    return [
        Diagnostic(
            "DSV858",
            f"plan `{manifest.name}` compiles but does not run here: {'; '.join(reasons)}",
            facts=(("target.family", family), ("stages", str(stages))),
            help="compile it for one CPU to run it here: `--target cpu`",
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


def missing(manifest: Manifest) -> str | None:
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
    count = torch.cuda.device_count()
    if _index(manifest) >= count:
        return f"torch sees {count} GPUs, the plan is for number {_index(manifest)}"
    native = _native_variant(manifest)
    return f"its kernels need `{native}`, which is not installed" if native and find_spec(native) is None else None


def _index(manifest: Manifest) -> int:
    """The number in a device's name, `cuda:1`."""
    return int(manifest.target.devices[0].partition(":")[2] or 0)
