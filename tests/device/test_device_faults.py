"""Errors of a real device: told with the op where it is known, else with all that may have made them.

Each runs in a process of its own, which can use the device no more afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import planted
import pytest
import torch
from golden_tiny import TINY, ids, plan

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.device.families import missing
from dsv41c.runtime.engine import Engine

FAMILY = "rocm" if torch.version.hip else "cuda"
LACKING = missing(planted.for_family(plan(), FAMILY).manifest)
pytestmark = pytest.mark.skipif(LACKING is not None, reason=f"needs a GPU: {LACKING}")

# An index that is not there stops the device by an assertion, whenever it gets to it.
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import torch
import planted
from golden_tiny import TINY, ids, plan
from dsv41c.diagnostics import UserFault
from dsv41c.kernels.registry import kernels_for
from dsv41c.report import render
from dsv41c.runtime.engine import Engine

FAMILY = "rocm" if torch.version.hip else "cuda"

class Kernels:
    armed = False
    since = 0

    def __getattr__(self, kind):
        kernel = getattr(kernels_for(FAMILY, "static"), kind)
        if kind != "attend":
            return kernel

        def spoiled(*args, **named):
            result = kernel(*args, **named)
            self.since -= self.armed
            if self.armed and self.since < 0:
                {fault}
            return result

        return spoiled

kernels = Kernels()
running = Engine(planted.for_family(plan(), FAMILY), TINY, kernels=kernels, {options})
session = running.open()
session.feed(ids()[:6], chunk=6)
try:
    {work}
except UserFault as fault:
    print(render(fault.diagnostics, {{}}, "text"))
"""
OUTSIDE = "result[(args[0].slots + 99,)]"


def said(work: str, fault: str = OUTSIDE, options: str = "") -> str:
    folder = str(Path(__file__).resolve().parents[1] / "runtime")
    script = SCRIPT.format(folder=folder, fault=fault, options=options, work=work)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert "error[DSV" in done.stdout, done.stdout + done.stderr[-4000:]
    return done.stdout


FEED = "kernels.armed, kernels.since = True, 3; session.feed(ids()[6:20], chunk=7)"
DECODE = "kernels.armed, kernels.since = True, {}; running.decode({{session: 7}})"


def test_a_prompts_error_has_the_regions_it_may_come_from() -> None:
    text = said(FEED)
    assert "DSV842" in text and "assert" in text.lower() and "from `embed`" in text
    assert "slot 0 (epoch 1) at positions" in text


def test_checking_names_the_op() -> None:
    text = said(FEED, options="check_finite=True")
    assert "DSV842" in text and "`layers.3.attn.attend`, which makes `attended@L3`," in text
    assert "devices tell of an error late" not in text and "at positions 6-12" in text


def test_debugging_names_the_region() -> None:
    text = said(FEED, options="debug=2")
    assert "DSV842" in text and "it was made in `layers.3`" in text


def test_a_step_that_is_replayed() -> None:
    """Its slots are none that pools have; those of the warm-up were."""
    text = said(
        "running.decode({session: 7}); fill = running.captured._fill; running.captured._fill = lambda b, i, s, p: "
        "fill(b, i, [99999] * b, p); running.decode({session: 7})"
    )
    assert "DSV842" in text and "decode, " in text and "slot 0 (epoch 1) at position 7" in text
    assert "from `embed`" in text


def test_a_warm_up_that_fails() -> None:
    text = said(DECODE.format(0))
    assert "DSV842" in text and "decode, warm-up" in text and "none: padding rows alone" in text


def test_a_capture_that_waits_for_the_device() -> None:
    """The warm-ups pass: only inside of a capture a number must not be asked for."""
    fault = "torch.cuda.is_current_stream_capturing() and result.sum().item()"
    text = said(DECODE.format(0), fault)
    assert "`layers.0.attn.attend`, which makes `attended@L0`, " in text and "decode, capture" in text
    assert "devices tell of an error late" not in text


def test_no_memory() -> None:
    text = said(FEED, "torch.empty(1 << 44, device=result.device)")
    assert "error[DSV841]: no memory left for `layers.3.attn.attend`, which makes `attended@L3`" in text


def native(**options: object) -> Engine:
    changes = (("activation_quant: fp8", "activation_quant: none"), ('["cpu:0"]', f'["{FAMILY}:0"]'))
    return Engine(plan("bf16-act_fp8-kv_reference", *changes, *options.pop("changes", ())), TINY, **options)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("debug", [0, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_native_kernels_are_no_false_alarms(packed: bool, debug: int) -> None:
    changes = (("kv_cache: reference", "kv_cache: packed"),) if packed else ()
    running = native(changes=changes, check_finite=True, debug=debug)
    a, b = running.open(), running.open()
    for session, first in ((a, 0), (b, 30)):
        session.feed(ids()[first : first + 33], chunk=9)
    a.reset()
    c = b.fork()
    a.feed(ids()[:3])
    for token in range(3):
        running.decode({a: token, b: token + 5, c: token + 9})


def test_the_op_inside_a_native_fused_call_is_named() -> None:
    running = native(check_finite=True)
    weight = running.executor.weights["layers.3"].attn_norm
    weight.mul_(3e38)
    with pytest.raises(UserFault) as fault:
        running.feed(running.open(), ids()[:9])
    (finding,) = fault.value.diagnostics
    assert dict(finding.facts)["op"] == "layers.3.attn.norm" and "run again op by op" in finding.notes[0]
