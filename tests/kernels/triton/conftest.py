"""Triton kernels run in Triton's interpreter here, which has to be asked for before Triton is imported.

It is made to treat bf16 as hardware does: by itself it cuts fp32 off instead of rounding to the nearest, ties to even,
and multiplies the raw bits of bf16 operands in a dot. It also replaces the language's functions again at each call of a
helper, a quarter of its time: once a launch is enough.
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "device"))  # layers are compared as on a GPU

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_convert = interpreter._convert_float
_dot = interpreter.InterpreterBuilder.create_dot
_patch_lang = interpreter._patch_lang
_launch = interpreter.GridExecutor.__call__
_patched = set()


def _widened(data):
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _rounded(data):
    bits = np.ascontiguousarray(data).view(np.uint32)
    nearest = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(bits.view(np.float32)), 0x7FC0, nearest).astype(np.uint16)


def convert_float(data, source, target, rounding_mode):
    if source == tl.bfloat16 and target == tl.float32:
        return _widened(np.ascontiguousarray(data)).view(np.uint32).reshape(data.shape)
    if source == tl.float32 and target == tl.bfloat16:
        return _rounded(data).reshape(data.shape)
    return _convert(data, source, target, rounding_mode)


def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    if a.dtype.scalar == tl.bfloat16:
        a, b = (
            interpreter.TensorHandle(_widened(np.ascontiguousarray(x.data)).reshape(x.data.shape), tl.float32)
            for x in (a, b)
        )
    return _dot(self, a, b, d, input_precision, max_num_imprecise_acc)


def patch_lang(function):
    languages = tuple(name for name, value in function.__globals__.items() if value is tl or value is tl.core)
    if languages in _patched:
        return interpreter._LangPatchScope()
    _patched.add(languages)
    return _patch_lang(function)


def launch(self, *args, **named):
    _patched.clear()
    return _launch(self, *args, **named)


interpreter._convert_float = convert_float
interpreter._patch_lang = patch_lang
interpreter.GridExecutor.__call__ = launch
interpreter.InterpreterBuilder.create_dot = create_dot
