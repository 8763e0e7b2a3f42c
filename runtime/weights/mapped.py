"""Files mapped into memory: tensors as bytes that are read when touched, and stay on disk otherwise."""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.weights.gguf.decode import decoded
from dsv41c.runtime.weights.gguf.tensor import GgufHeader
from dsv41c.runtime.weights.headers import Checkpoint, TensorHeader

# Dtypes that tensors are handed out in; all others come as raw bytes. E8M0 among them: a cast would destroy it.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


ALIGNED, COPIED_BYTES = 64, 1 << 28
_HELP = "wait until the download or export is finished, and run again"


class MappedFiles:
    """The files of a checkpoint, each mapped once, read-only. Tensors keep their map alive by themselves."""

    def __init__(self, checkpoint: Checkpoint, files: Iterable[str]) -> None:
        """Map files. Raises UserFault for those that changed since their headers were read."""
        self.checkpoint = checkpoint
        self._maps: dict[str, mmap.mmap] = {}
        findings = []
        for name in dict.fromkeys(files):
            try:
                with open(checkpoint.folder / name, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if size != checkpoint.files[name]:
                        text = f"`{name}` has {size} bytes, and had {checkpoint.files[name]} when it was checked"
                        findings.append(Diagnostic("DSV732", text, Span(name), help=_HELP))
                        continue
                    self._maps[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                text = f"`{name}` can no longer be mapped: {reason}"
                findings.append(Diagnostic("DSV732", text, Span(name), help=_HELP))
        if findings:
            raise UserFault(checkpoint.located(findings))

    def tensor(self, header: TensorHeader) -> Tensor:
        """A read-only view of a tensor: floats in their dtype and shape, all others as uint8 (F4: [..., N/2]).

        What GGUF stores in blocks is decoded: no view, but a copy.
        """
        if isinstance(header, GgufHeader):
            return decoded(self.raw(header), header)
        dtype = _DTYPES.get(header.dtype, torch.uint8)
        shape = list(header.shape)
        if header.dtype == "F4":
            shape[-1] //= 2
        if header.size == 0:
            return torch.empty(shape, dtype=dtype)
        data = self.raw(header)
        if header.pitch:
            data = data.as_strided((header.shape[0], header.row), (header.pitch, 1))
        # The format promises no alignment. Floats get that of tensors in memory, since sums over others may add up in
        # another order, so that two files of the same values would give other logits. Embeddings are looked up only.
        wanted = ALIGNED if dtype != torch.uint8 and header.size <= COPIED_BYTES else dtype.itemsize
        if data.data_ptr() % wanted or header.pitch % dtype.itemsize:
            data = data.clone(memory_format=torch.contiguous_format)
        assert math.prod(shape) * dtype.itemsize == header.size, header
        return data.view(dtype).view(shape)

    def raw(self, header: TensorHeader) -> Tensor:
        """A read-only view of the bytes of a tensor, from its first to its last: uint8 [extent]."""
        if header.size == 0:
            return torch.empty(0, dtype=torch.uint8)
        with warnings.catch_warnings():
            # Torch warns that the buffer is read-only. That is the point: nothing writes to weights.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(
                self._maps[header.file], dtype=torch.uint8, count=header.extent, offset=header.offset
            )
