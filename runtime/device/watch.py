"""Watching one run of captured work on the CPU: every operation, and what of it a device graph could not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.device import findings
from dsv41c.runtime.device.protocol import Work
from dsv41c.runtime.device.rules import Rules
from dsv41c.runtime.manifest import OpEntry

# Python's ways to a value on the host. Some of them run no operation on a CPU tensor, so they are known by name.
_HOST_READS = frozenset(("item", "tolist", "cpu", "numpy", "is_nonzero", "__array__", "__dlpack__")) | frozenset(
    ("__bool__", "__int__", "__float__", "__index__", "__complex__")
)
_HOST, _DYNAMIC = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
_ATEN = torch.ops.aten
_INDEXING = frozenset((_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default))


class Operation(NamedTuple):
    """One operation as a graph fixes it: the op it serves, what runs, and its arguments and results without addresses.

    Tensors stand as their dtype, shape, strides and storage offset.
    """

    op: str | None
    function: Any
    arguments: tuple[object, ...]
    results: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.function}({_text(self.arguments)}) -> {_text(self.results)}"


# Torch's own, which has no types: `expired()` tells whether the memory is gone.
_weakly: Callable[[torch.UntypedStorage], Any] = StorageWeakRef


class _Made(NamedTuple):
    storage: Any
    op: OpEntry | None
    function: str
    size: int


class Watch:
    """What one run of work does. With `expected`, the operations of an earlier run, it has to do the same.

    Raises `UserFault` at the first fault, from within the operation that makes it.
    """

    def __init__(self, work: Work, rules: Rules, expected: Sequence[Operation] | None = None) -> None:
        self.work = work
        self.rules = rules
        self.expected = expected
        self.operations: list[Operation] = []
        self.op: OpEntry | None = None
        self.named = {_storage(tensor): name for name, tensor in work.reads().items()}
        self.pools = {_storage(tensor): _lies(tensor) for tensor in work.state().values()}
        self.known = {*self.named, *(_storage(tensor) for tensor in work.constants())}
        self.made: list[tuple[int, _Made]] = []  # held weakly; a storage that something holds weakly is not reused

    def run(self) -> dict[str, Tensor]:
        """Run the work under watch; its outputs."""
        with self._modes():
            outputs = self.work.call(self._enter)
        if self.expected is not None and len(self.operations) < len(self.expected):
            old = str(self.expected[len(self.operations)])
            raise UserFault([findings.differs(self.work, None, old, "nothing more")])
        leaving = {_storage(tensor) for tensor in outputs.values()}
        for storage, made in self.made:
            if storage not in leaving and not made.storage.expired():
                raise UserFault([findings.outlives(self.work, made.op, made.function, made.size)])
        return outputs

    @contextmanager
    def _modes(self) -> Iterator[None]:
        with _Functions(self), _Operations(self):
            yield

    def _enter(self, op: OpEntry) -> None:
        self.op = op

    def called(self, name: str, args: Sequence[object]) -> None:
        """Before a function of torch is called from Python."""
        if name in _HOST_READS or (name == "to" and "cpu" in args):
            self._refuse(findings.host_read(self.work, self.op, name))

    def around(self, function: Any, args: Sequence[object], named: Mapping[str, object]) -> object:
        """Run an operation of torch, looked at before and after."""
        arguments = [*_leaves(args), *_leaves(named)] if named else list(_leaves(args))
        self._before(function, args, named, arguments)
        result = function(*args, **named)
        results = list(_leaves((result,)))
        self._after(function, arguments, results)
        return result

    def _before(
        self, function: Any, args: Sequence[object], named: Mapping[str, object], arguments: Sequence[object]
    ) -> None:
        tags = function.tags
        if _HOST in tags:
            self._refuse(findings.host_read(self.work, self.op, str(function)))
        if (_DYNAMIC in tags or function in _INDEXING) and _shape_from_data(function, args):
            self._refuse(findings.data_shape(self.work, self.op, str(function)))
        for tensor in arguments:
            if isinstance(tensor, Tensor) and _storage(tensor) not in self.known:
                self._refuse(findings.undeclared(self.work, self.op, str(function)))
        if self.rules.whole_updates and function._schema.is_mutable:
            for tensor in _written(function, args, named):
                storage = _storage(tensor)
                if storage in self.pools and _lies(tensor) != self.pools[storage]:
                    name = self.named[storage]
                    self._refuse(findings.view_update(self.work, self.op, str(function), name))

    def _after(self, function: Any, arguments: Sequence[object], results: Sequence[object]) -> None:
        for tensor in results:
            if isinstance(tensor, Tensor):
                memory = tensor.untyped_storage()
                if memory._cdata not in self.known:
                    self.known.add(memory._cdata)
                    made = _Made(_weakly(memory), self.op, str(function), memory.nbytes())
                    self.made.append((memory._cdata, made))
        op = None if self.op is None else self.op.id
        operation = Operation(op, function, tuple(map(_fixed, arguments)), tuple(map(_fixed, results)))
        self.operations.append(operation)
        if self.expected is not None:
            index = len(self.operations) - 1
            old = self.expected[index] if index < len(self.expected) else None
            if operation != old:
                self._changed(old, operation, results)

    def _changed(self, old: Operation | None, new: Operation, results: Sequence[object]) -> None:
        if self.rules.fixed_views and old is not None and new[:2] == old[:2]:
            for tensor in results:
                name = self.named.get(_storage(tensor)) if isinstance(tensor, Tensor) else None
                if name is not None:
                    texts = str(new.function), name, _text(old.results), _text(new.results)
                    self._refuse(findings.view_changed(self.work, self.op, *texts))
        self._refuse(findings.differs(self.work, self.op, str(old) if old is not None else "nothing more", str(new)))

    def _refuse(self, finding: Diagnostic) -> None:
        raise UserFault([finding])


class _Functions(TorchFunctionMode):
    """Tells a watch what Python calls."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.watch.called(getattr(func, "__name__", ""), [*args, *(kwargs or {}).values()])
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells a watch what runs."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.watch.around(func, args, kwargs or {})


def _storage(tensor: Tensor) -> int:
    """What two tensors on the same memory share; also good on the meta device, where no address is."""
    return int(tensor.untyped_storage()._cdata)


def _lies(tensor: Tensor) -> tuple[object, ...]:
    """How a tensor lies in its storage."""
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def _fixed(item: object) -> object:
    """An argument or result as a graph fixes it."""
    return _lies(item) if isinstance(item, Tensor) else item


def _leaves(items: object) -> Iterator[object]:
    """What arguments or results are made of, containers taken apart."""
    if isinstance(items, list | tuple):
        for item in items:
            if isinstance(item, list | tuple):
                yield from _leaves(item)
            else:
                yield item
    elif isinstance(items, Mapping):
        for name, item in items.items():
            yield name
            yield from _leaves((item,))


def _shape_from_data(function: Any, args: Sequence[object]) -> bool:
    """Whether torch says so; indexing it says it of always, and only masks among the indices make it true."""
    if function in _INDEXING:
        masks = (torch.bool, torch.uint8)
        return any(isinstance(index, Tensor) and index.dtype in masks for index in _leaves(args[1]))
    return True


def _written(function: Any, args: Sequence[object], named: Mapping[str, object]) -> Iterator[Tensor]:
    """The arguments that an operation writes."""
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[index] if index < len(args) else named.get(argument.name)
            yield from (item for item in _leaves((given,)) if isinstance(item, Tensor))


def _text(items: Sequence[object]) -> str:
    """Arguments or results to show to a person."""
    return ", ".join(_shown(item) for item in items)


def _shown(item: object) -> str:
    if isinstance(item, tuple) and len(item) == 4 and isinstance(item[0], torch.dtype):
        dtype, shape, strides, offset = item
        return f"{str(dtype).removeprefix('torch.')}{list(shape)} strides {list(strides)} offset {offset}"
    return repr(item)
