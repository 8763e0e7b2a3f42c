"""The forms that stage files may have, and everything that they may not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.runtime.plan_code import RefusedError, check_module

TOY = compile_spec(load("toy"))

FORM = '''"""Stage."""


def f(kernels, weights, step, x):
    """Do."""
    y = kernels.norm(x, weights.w, eps=1e-20)
    return y
'''
CALL = "y = kernels.norm(x, weights.w, eps=1e-20)"
HOSTILE = {
    "import": ('"""Stage."""', '"""Stage."""\nimport os'),
    "import from": (CALL, "from os import system"),
    "import in a function": (CALL, "import os"),
    "statement outside": ("\n\ndef f", "\nprint()\n\ndef f"),
    "no docstring": ('"""Stage."""', "x = 1"),
    "class": ("def f(kernels, weights, step, x):", "class f(object):"),
    "async": ("def f", "async def f"),
    "decorator": ("def f", "@kernels\ndef f"),
    "default": ("step, x)", "step, x=1)"),
    "keyword only": ("step, x)", "step, *, x)"),
    "positional only": ("step, x)", "step, x, /)"),
    "star parameter": ("step, x)", "step, *x)"),
    "star star parameter": ("step, x)", "step, x, **k)"),
    "annotation": ("step, x)", "step, x: int)"),
    "return annotation": ("step, x):", "step, x) -> int:"),
    "other first parameters": ("kernels, weights", "weights, kernels"),
    "repeated parameter": ("step, x)", "step, x, x)"),
    "eval": (CALL, "y = eval('1')"),
    "exec through kernels": (CALL, "y = kernels.exec(x)"),
    "dunder of kernels": (CALL, "y = kernels.__class__(x)"),
    "name with two underscores": ("def f", "def f__g"),
    "deep attribute": (CALL, "y = kernels.norm.__globals__(x, weights.w, eps=1e-20)"),
    "attribute of weights": (CALL, "y = kernels.norm(x, weights.w.data, eps=1e-20)"),
    "dunder of weights": (CALL, "y = kernels.norm(x, weights.__class__, eps=1e-20)"),
    "attribute of a name": (CALL, "y = kernels.norm(x.data, weights.w, eps=1e-20)"),
    "subscript": (CALL, "y = kernels.norm(x[0], weights.w, eps=1e-20)"),
    "lambda": (CALL, "y = kernels.norm(x, weights.w, eps=lambda: 1)"),
    "comprehension": (CALL, "y = kernels.norm([z for z in x], weights.w, eps=1e-20)"),
    "generator": (CALL, "y = kernels.norm((z for z in x), weights.w, eps=1e-20)"),
    "f-string": (CALL, "y = kernels.norm(x, weights.w, eps=f'{x}')"),
    "walrus": (CALL, "y = kernels.norm((z := x), weights.w, eps=1e-20)"),
    "global": (CALL, "global y"),
    "nonlocal call": (CALL, "y = x(1)"),
    "star argument": (CALL, "y = kernels.norm(*x)"),
    "star star argument": (CALL, "y = kernels.norm(x, weights.w, **x)"),
    "nested call": (CALL, "y = kernels.norm(kernels.norm(x, weights.w, eps=1e-20), weights.w, eps=1e-20)"),
    "arithmetic": (CALL, "y = x + 1"),
    "arithmetic in an argument": (CALL, "y = kernels.norm(x, weights.w, eps=10 ** 10 ** 10)"),
    "boolean": (CALL, "y = kernels.norm(x, weights.w, eps=True)"),
    "none": (CALL, "y = kernels.norm(x, weights.w, eps=None)"),
    "bytes": (CALL, "y = kernels.norm(x, weights.w, eps=b'')"),
    "ellipsis": (CALL, "y = kernels.norm(x, weights.w, eps=...)"),
    "complex": (CALL, "y = kernels.norm(x, weights.w, eps=1j)"),
    "infinity": (CALL, "y = kernels.norm(x, weights.w, eps=1e999)"),
    "minus a string": (CALL, "y = kernels.norm(x, weights.w, eps=-'a')"),
    "not a number": (CALL, "y = kernels.norm(x, weights.w, eps=not 1)"),
    "literal by place": (CALL, "y = kernels.norm(1, weights.w, eps=1e-20)"),
    "unknown name": (CALL, "y = kernels.norm(z, weights.w, eps=1e-20)"),
    "kernels as an argument": (CALL, "y = kernels.norm(kernels, weights.w, eps=1e-20)"),
    "weights as an argument": (CALL, "y = kernels.norm(weights, weights.w, eps=1e-20)"),
    "too few arguments": (CALL, "y = kernels.norm(x, eps=1e-20)"),
    "too many arguments": (CALL, "y = kernels.norm(x, weights.w, x, eps=1e-20)"),
    "unknown keyword": (CALL, "y = kernels.norm(x, weights.w, eps=1e-20, out=x)"),
    "missing keyword": (CALL, "y = kernels.norm(x, weights.w)"),
    "repeated keyword": (CALL, "y = kernels.norm(x, weights.w, eps=1, eps=2)"),
    "unknown kernel": (CALL, "y = kernels.nothing(x)"),
    "transfer in code": (CALL, "y = kernels.transfer(x)"),
    "too many results": (CALL, "y, z = kernels.norm(x, weights.w, eps=1e-20)"),
    "assign to attribute": (CALL, "kernels.norm = kernels.norm(x, weights.w, eps=1e-20)"),
    "assign to subscript": (CALL, "x[0] = kernels.norm(x, weights.w, eps=1e-20)"),
    "assign to kernels": (CALL, "kernels = kernels.norm(x, weights.w, eps=1e-20)"),
    "assign to step": (CALL, "step = kernels.norm(x, weights.w, eps=1e-20)"),
    "starred target": (CALL, "*y, = kernels.norm(x, weights.w, eps=1e-20)"),
    "chained assignment": (CALL, "y = z = kernels.norm(x, weights.w, eps=1e-20)"),
    "annotated assignment": (CALL, "y: int = kernels.norm(x, weights.w, eps=1e-20)"),
    "augmented assignment": (CALL, "x += kernels.norm(x, weights.w, eps=1e-20)"),
    "bare call": (CALL, "kernels.norm(x, weights.w, eps=1e-20)"),
    "if": (CALL, "if x: pass"),
    "loop": (CALL, "while x: pass"),
    "with": (CALL, "with x: pass"),
    "try": (CALL, "try: pass\n    except: pass"),
    "delete": (CALL, "del x"),
    "pass": (CALL, "pass"),
    "assert": (CALL, "assert x"),
    "raise": (CALL, "raise x"),
    "yield": (CALL, "y = yield x"),
    "nested function": (CALL, "def g(): pass"),
    "match": (CALL, "match x:\n        case 1: pass"),
    "dunder name": (CALL, "__y__ = kernels.norm(x, weights.w, eps=1e-20)"),
    "not ascii name": (CALL, "ý = kernels.norm(x, weights.w, eps=1e-20)"),
    "return of a call": ("return y", "return kernels.norm(x, weights.w, eps=1e-20)"),
    "return of an attribute": ("return y", "return x.y"),
    "return of kernels": ("return y", "return kernels"),
    "return of nothing": ("return y", "return"),
    "no return": ("    return y\n", ""),
    "starred return": ("return y", "return *y, x"),
    "code behind the return": ("return y", "return y\n    import os"),
    "semicolon": ("return y", "return y\n\n\nimport os; os.system('x')"),
    "not Python": (CALL, "y = ("),
    "null byte": (CALL, "y = \0"),
    "deep nesting": (CALL, "y = " + "(" * 5000 + "x" + ")" * 5000),
    "deep minus": (CALL, "y = kernels.norm(x, weights.w, eps=" + "-" * 100000 + "1)"),
    "line continuation": ('"""Stage."""', '"""Stage."""\\\n; import os'),
    "many digits": (CALL, "y = kernels.norm(x, weights.w, eps=" + "9" * 5000 + ")"),
}


def test_the_form_is_accepted():
    _, (function,) = check_module(FORM)
    assert (function.name, function.reads, function.weights) == ("f", ("x",), frozenset({"w"}))
    check_module(FORM.replace("eps=1e-20", "eps=-1"))


@pytest.mark.parametrize("name", HOSTILE)
def test_any_other_form_is_refused(name):
    old, new = HOSTILE[name]
    assert old in FORM
    with pytest.raises(RefusedError):
        check_module(FORM.replace(old, new, 1))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_change_of_code_gives_an_exception(data):
    source = TOY.files["stage_0.py"]
    words = re.findall(r"\w+|\W", source)
    index = data.draw(st.integers(0, len(words) - 1))
    words[index] = data.draw(
        st.sampled_from(["", "(", ")", "x", "\n", "import os", "__class__", ".", "=", "1", '"', ";"])
    )
    try:
        check_module("".join(words))
    except RefusedError as refused:
        assert refused.line >= 1
