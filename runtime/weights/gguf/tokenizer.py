"""The tokenizer of a GGUF file: byte-level BPE out of its keys `tokenizer.ggml.*`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.weights.gguf.files import gguf_files
from dsv41c.runtime.weights.gguf.header import Value, read_file
from dsv41c.runtime.weights.names import shown

_KEY = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# How text is split before tokens are merged, by the names that files give it. `default` is what converters write where
# they know no name; the rule is then that of the kind of vocabulary, which `gpt2` names.
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "gpt-2": (),
    "deepseek-v3": _DEEPSEEK,
    "joyai-llm": _DEEPSEEK,
}
_HELP = "use a file with the model's tokenizer, or run with `--ids`"


def read_keys(path: Path) -> tuple[Mapping[str, Value], str]:
    """The keys of a GGUF checkpoint and the file that has them. Raises UserFault where it cannot be read."""
    listing = gguf_files(path)
    if not listing.names:
        raise UserFault(listing.findings)
    file = read_file(listing.folder, listing.names[0])
    if not file.readable:
        raise UserFault(file.findings)
    return file.keys, str(listing.folder / file.name)


def gguf_tokenizer(keys: Mapping[str, Value], file: str, *, text: bool = True) -> Tokenizer:
    """The tokenizer of a file's keys. Without `text` one for single ids alone, whatever splits text.

    Raises UserFault (DSV769) with every finding where the keys give none.
    """
    faults = []
    model, split = _text(keys, "model"), _text(keys, "pre") or "default"
    tokens, merges, kinds = _texts(keys, "tokens"), _texts(keys, "merges"), _numbers(keys, "token_type")
    if model != "gpt2":
        told = "none" if model is None else f"`{shown(model)}`"
        faults.append(f"`{_KEY}model` is {told}, expected `gpt2`, byte-level BPE")
    if not tokens:
        faults.append(f"`{_KEY}tokens` is no list of tokens")
    if merges is None:
        faults.append(f"`{_KEY}merges` is no list of merges")
    if tokens and kinds is not None and len(kinds) != len(tokens):
        faults.append(f"`{_KEY}token_type` has {len(kinds):,} entries for {len(tokens):,} tokens")
    if text and split not in _SPLITS:
        faults.append(f"`{_KEY}pre` is `{shown(split)}`, which is unknown here; known are {', '.join(_SPLITS)}")
    if not faults and tokens and merges is not None:
        known = frozenset(tokens)
        wrong = next((merge for merge in merges if not _is_merge(merge, known)), None)
        if wrong is None:
            return _built(tokens, merges, kinds or (), _SPLITS.get(split, ()))
        faults.append(f"`{_KEY}merges` has `{shown(wrong)}`, whose parts and whole are not all tokens")
    raise UserFault([Diagnostic("DSV769", fault, Span(file), help=_HELP) for fault in faults])


def _is_merge(merge: str, known: frozenset[str]) -> bool:
    parts = merge.split(" ")
    return len(parts) == 2 and {*parts, "".join(parts)} <= known


def _built(
    tokens: tuple[str, ...], merges: tuple[str, ...], kinds: array[int] | tuple[int, ...], splits: tuple[str, ...]
) -> Tokenizer:
    pairs = []
    for merge in merges:
        one, two = merge.split(" ")
        pairs.append((one, two))
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=pairs))
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in splits
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _CONTROL]
    defined = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in defined])
    return tokenizer


def _text(keys: Mapping[str, Value], name: str) -> str | None:
    value = keys.get(_KEY + name)
    return value.data if value is not None and isinstance(value.data, str) else None


def _texts(keys: Mapping[str, Value], name: str) -> tuple[str, ...] | None:
    value = keys.get(_KEY + name)
    return value.data if value is not None and isinstance(value.data, tuple) else None


def _numbers(keys: Mapping[str, Value], name: str) -> array[int] | None:
    value = keys.get(_KEY + name)
    if value is None or not isinstance(value.data, array) or value.data.typecode in "fd":
        return None
    return value.data  # type: ignore[return-value]
