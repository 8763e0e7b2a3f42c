"""From the tensors of files to official ones: prefixes off, other spellings translated, merged tensors apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.names import shown, split_prefix, unused_family
from dsv41c.runtime.weights.parts import MAX_PARTS, IndivisibleError, parts
from dsv41c.runtime.weights.shard import LISTED, TensorHeader
from dsv41c.runtime.weights.variants import known
from dsv41c.words import counted

_HELP_PARTS = "export the tensor as its name says, or one for each matrix"
# A class around the text model puts its prefix on all but the head.
_OUTSIDE = ("head.weight",)


@dataclass(slots=True)
class Official:
    """Tensors by official name, the prefix of the text backbone, what is wrong with them; `damaged` could not be read.

    `complete` is false where a damaged tensor may have held any number of others.
    """

    tensors: dict[str, TensorHeader] = field(default_factory=dict)
    prefix: str = ""
    damaged: set[str] = field(default_factory=set)
    complete: bool = True
    findings: list[Diagnostic] = field(default_factory=list)

    def lose(self, stored: str) -> None:
        """Note that a stored tensor cannot be judged, nor what it holds."""
        _, name = split_prefix(stored)
        what = known(name)
        officials = what.officials if what else (name,)
        self.damaged.update(officials)
        self.complete = self.complete and not any("{expert}" in official for official in officials)


def official(found: list[TensorHeader], declared: Mapping[str, str], damaged: Iterable[str]) -> Official:
    """The official tensors that stored ones are or hold. Nothing is raised; prefixes must not mix."""
    result = Official()
    examples: dict[str, str] = {}
    same: list[tuple[str, str]] = []
    for stored in damaged:
        result.lose(stored)
    merged = 0
    indivisible: dict[str, list[TensorHeader]] = {}
    for tensor in found:
        try:
            pieces = list(parts(tensor, declared))
            merged += len(pieces) - 1
            if merged > MAX_PARTS:
                raise IndivisibleError(f"makes more than {MAX_PARTS:,} tensors of merged ones")
        except IndivisibleError as error:
            indivisible.setdefault(str(error), []).append(tensor)
            result.lose(tensor.stored)
            continue
        prefix, _ = split_prefix(tensor.stored)
        for piece in pieces:
            # Towers and drafts may be spelled their own way beside a wrapped text model; only what is read must agree.
            if unused_family(piece.name) is None and piece.name not in _OUTSIDE:
                examples.setdefault(prefix, tensor.stored)
            other = result.tensors.setdefault(piece.name, piece)
            if other.stored != piece.stored:  # else two files hold it, which is told of as such
                same.append((other.stored, piece.stored))
    result.findings += [_indivisible(text, tensors) for text, tensors in indivisible.items()]
    if same:
        listed = "; ".join(f"`{one}` and `{two}`" for one, two in same[:LISTED])
        text = f"{counted(len(same), 'tensor')} in two spellings: {listed}"
        result.findings.append(Diagnostic("DSV710", text, help="keep the tensors of one spelling"))
    elif len(examples) > 1:
        listed = ", ".join(f"{f'`{p}`' if p else 'none'} (`{examples[p]}`)" for p in sorted(examples))
        text = f"tensor names mix {len(examples)} prefixes: {listed}"
        help_text = "export the checkpoint with one prefix for the text model"
        result.findings.append(Diagnostic("DSV710", text, help=help_text))
    else:
        result.prefix = next(iter(examples), "")
    return result


def _indivisible(text: str, tensors: list[TensorHeader]) -> Diagnostic:
    first = tensors[0]
    more = f" (and {len(tensors) - 1:,} more)" if len(tensors) > 1 else ""
    facts = (("tensors", ", ".join(f"`{shown(t.stored)}`" for t in tensors[:LISTED])),) if more else ()
    return Diagnostic(
        "DSV711", f"tensor `{first.stored}` {text}{more}", Span(first.file), facts=facts, help=_HELP_PARTS
    )
