"""The forms that stage files may have. Everything else is refused before anything is executed.

    "docstring"
    def layer_4(kernels, weights, step, streams_L3_ffn):
        "docstring"
        a, b = kernels.op(step, name, weights.name, key=literal, key=name, key=weights.name)
        return a, b

Hashes find accidents; this is what stops an attacker.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dsv41c.kernels.catalog import OpKind
from dsv41c.kernels.fusion import CALLS

MAX_SOURCE_BYTES = 1 << 26
Literal = int | float | str
_FIRST = ("kernels", "weights", "step")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,199}")


class RefusedError(Exception):
    """A form that no template produces, and the line it is in."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel call: its op kind or fused kind, targets, and arguments; names as text, attributes as values."""

    kind: str
    line: int
    attributes: Mapping[str, Literal]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a stage file: its reads (parameters behind the first three) and calls; `line` is that of `def`."""

    name: str
    line: int
    reads: tuple[str, ...]
    weights: frozenset[str]
    calls: tuple[Call, ...]
    results: int


def check_module(source: str) -> tuple[ast.Module, tuple[Function, ...]]:
    """The syntax tree of a stage file and its functions. Raises `RefusedError` at the first form that is not ours."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise RefusedError(f"it is not Python: {error.msg}", error.lineno or 1) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise RefusedError(f"it cannot be parsed: {type(error).__name__}") from None
    body = list(tree.body)
    if tree.type_ignores or not body or not _is_docstring(body[0]):
        raise RefusedError("it does not start with a docstring")
    return tree, tuple(_function(node) for node in body[1:])


def _function(node: ast.stmt) -> Function:
    if not isinstance(node, ast.FunctionDef):
        raise RefusedError(f"{_form(node)} outside a function, expected only functions", node.lineno)
    given = node.args
    extras = (given.posonlyargs, given.kwonlyargs, given.vararg, given.kwarg, given.defaults, given.kw_defaults)
    if any(extras) or node.decorator_list or node.returns or node.type_comment or getattr(node, "type_params", None):
        raise RefusedError("a function with more than plain parameters", node.lineno)
    if any(argument.annotation or argument.type_comment for argument in given.args):
        raise RefusedError("a parameter with an annotation", node.lineno)
    parameters = [_plain(argument.arg, argument.lineno) for argument in given.args]
    if tuple(parameters[:3]) != _FIRST or len(set(parameters)) != len(parameters):
        raise RefusedError(f"parameters that do not start with {', '.join(_FIRST)}, or come twice", node.lineno)
    if len(node.body) < 3 or not _is_docstring(node.body[0]):
        raise RefusedError("a function without docstring, calls and a return", node.lineno)
    known, weights = set(parameters[2:]), set[str]()
    calls = tuple(_call(statement, known, weights) for statement in node.body[1:-1])
    results = _results(node.body[-1], known)
    name = _plain(node.name, node.lineno)
    return Function(name, node.lineno, tuple(parameters[3:]), frozenset(weights), calls, results)


def _call(node: ast.stmt, known: set[str], weights: set[str]) -> Call:
    """`name[, name] = kernels.op(...)`; the names are known from here on."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or node.type_comment:
        raise RefusedError(f"{_form(node)}, expected `name = kernels.op(...)`", node.lineno)
    call = node.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        raise RefusedError(f"{_form(call)} on the right, expected a call of a kernel", node.lineno)
    kind = call.func.attr
    if not isinstance(call.func.value, ast.Name) or call.func.value.id != "kernels":
        raise RefusedError("a call of something that is not `kernels.op`", node.lineno)
    if kind not in CALLS:
        raise RefusedError(f"a call of `kernels.{kind[:100]}`, which is no kernel", node.lineno)
    positional = [_argument(argument, known, weights) for argument in call.args]
    named: dict[str, Literal | None] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in named:
            raise RefusedError("`**` or a keyword that comes twice", node.lineno)
        literal = _literal(keyword.value)
        if literal is None:
            _argument(keyword.value, known, weights)
        named[keyword.arg] = literal
    _fits(CALLS[kind], len(positional), named, node.lineno)
    targets = _targets(node.targets[0])
    least, most = _count(CALLS[kind])
    if not least <= len(targets) <= most:
        raise RefusedError(f"`kernels.{kind}` gives {least} to {most} values, not {len(targets)}", node.lineno)
    known.update(targets)
    return Call(kind, node.lineno, {name: value for name, value in named.items() if value is not None})


def _fits(kind: OpKind, positional: int, named: Mapping[str, Literal | None], line: int) -> None:
    """Hold a call against the catalogue's calling convention: arguments by place, keywords, which of them literals."""
    required = sum(not port.optional for port in kind.reads) + len(kind.weights) + kind.uses_step
    optional = {port.name for port in kind.reads if port.optional} | set(kind.optional_weights)
    if positional != required:
        raise RefusedError(f"`kernels.{kind.name}` takes {required} arguments by place, not {positional}", line)
    literals = {name for name, value in named.items() if value is not None}
    attrs = set(kind.attrs)
    if not attrs <= literals <= attrs.union(kind.optional_attrs) or not named.keys() - literals <= optional:
        raise RefusedError(f"`kernels.{kind.name}` does not take these keywords: {', '.join(named)[:200]}", line)


def _count(kind: OpKind) -> tuple[int, int]:
    return sum(not port.optional for port in kind.writes), len(kind.writes)


def _targets(node: ast.expr) -> list[str]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    names = [_plain(item.id, item.lineno) for item in nodes if isinstance(item, ast.Name)]
    if len(names) != len(nodes) or not names or len(set(names)) != len(names) or set(names) & set(_FIRST):
        raise RefusedError("an assignment to something that is not a plain name", node.lineno)
    return names


def _argument(node: ast.expr, known: set[str], weights: set[str]) -> str:
    """A known name, or `weights.name`."""
    if isinstance(node, ast.Name):
        if node.id not in known:
            raise RefusedError(f"`{node.id[:100]}` is not a parameter nor assigned before", node.lineno)
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "weights":
        weights.add(_plain(node.attr, node.lineno))
        return node.attr
    raise RefusedError(f"{_form(node)} as an argument, expected a name, `weights.name` or a literal", node.lineno)


def _literal(node: ast.expr) -> Literal | None:
    """An int, a finite float or a str, also with a minus before a number; None for what is no literal."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, sign = node.operand, -1
        if not isinstance(node, ast.Constant) or isinstance(node.value, str):
            raise RefusedError("a minus before something that is no number", node.lineno)
    if not isinstance(node, ast.Constant):
        return None
    value = node.value
    if node.kind is not None or isinstance(value, bool) or not isinstance(value, int | float | str):
        raise RefusedError(f"the literal `{ascii(value)[:100]}`", node.lineno)
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError("a number that is not finite", node.lineno)
    return sign * value


def _results(node: ast.stmt, known: set[str]) -> int:
    if not isinstance(node, ast.Return) or node.value is None:
        raise RefusedError(f"{_form(node)} at the end of a function, expected `return name`", node.lineno)
    nodes = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    if not nodes or not all(isinstance(item, ast.Name) and item.id in known - {"step"} for item in nodes):
        raise RefusedError("a return of something that is not a known name", node.lineno)
    return len(nodes)


def _plain(name: str, line: int) -> str:
    if not _NAME.fullmatch(name) or "__" in name:
        raise RefusedError(f"the name `{ascii(name)[:100]}`", line)
    return name


def _is_docstring(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _form(node: ast.AST) -> str:
    """What a node is, for a message."""
    return f"`{type(node).__name__}`"
