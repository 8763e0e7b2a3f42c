"""A byte-level BPE tokenizer with exactly so many ids and exactly so many distinct keys under the token map.

Tokens come from two streams: those with a key of their own (the alphabet, then words of two letters, three, ...) and
those that share one (capitals, variants of the words with capitals or a space in front, runs of white space). Taking
the right number from each gives both counts. With room for the whole alphabet, any text survives a round trip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice, product
from string import ascii_lowercase, ascii_uppercase, digits, punctuation
from typing import NamedTuple

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.manifest import Manifest

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
CHAT = ("<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<think>", "</think>")
# Below this many ids beside them, the tokens of the chat format would leave hardly any for text.
LEAST_TEXT = 40

_WHITE = "\n\t\r"  # with the space itself, all the token map folds into one space
_FOLDED_IN_ALPHABET = len(_WHITE) + len(ascii_uppercase)


class _Token(NamedTuple):
    """A token by its bytes, one character each, and the two tokens it is merged from (single bytes: none)."""

    text: str
    parts: tuple[str, str] | None = None


def tokenizer_files(manifest: Manifest) -> dict[str, str]:
    """The texts of `tokenizer.json` and `tokenizer_config.json` for a plan. Raises UserFault (DSV752)."""
    vocab_size = manifest.model.vocab_size
    compressed = manifest.engram.compressed_vocab_size if manifest.engram else None
    special = _special_tokens(manifest, compressed)
    tokenizer = build_tokenizer(vocab_size, compressed, special)
    tokens = manifest.tokens
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special[tokens.bos],
        "eos_token": special[tokens.eos],
        "pad_token": special[tokens.pad],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": manifest.model.max_seq_len,
    }
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n",
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1) + "\n",
    }


def _special_tokens(manifest: Manifest, compressed: int | None) -> dict[int, str]:
    """Special tokens by id: the three with ids of their own, and those of the chat format if they fit."""
    vocab_size, tokens = manifest.model.vocab_size, manifest.tokens
    special: dict[int, str] = {}
    for token, text in ((tokens.bos, BOS), (tokens.eos, EOS), (tokens.pad, PAD)):
        if not 0 <= token < vocab_size:
            raise _impossible(f"special token id {token} is not among {vocab_size} ids")
        special.setdefault(token, text)
    if min(vocab_size, compressed or vocab_size) >= len(special) + len(CHAT) + LEAST_TEXT:
        free = (token for token in count() if token not in special)
        special.update(dict(zip(list(islice(free, len(CHAT))), CHAT, strict=True)))
    return special


def _impossible(text: str) -> UserFault:
    help_text = "choose a `compressed_vocab_size` above the number of special tokens and at most `vocab_size`"
    return UserFault([Diagnostic("DSV752", text, help=help_text)])


def build_tokenizer(vocab_size: int, compressed: int | None, special: dict[int, str]) -> dict[str, object]:
    """The document of `tokenizer.json`: `vocab_size` ids, `compressed` distinct keys (None: whatever suits text)."""
    if compressed is None:
        compressed = vocab_size - (_FOLDED_IN_ALPHABET if vocab_size >= 256 + len(special) else 0)
    own, shared = compressed - len(special), vocab_size - compressed
    if own < 0 or shared < 0 or (own == 0 and shared > 0):
        text = f"{vocab_size} ids with {compressed} distinct keys, {len(special)} of them special tokens"
        raise _impossible(f"no tokenizer has {text}")
    unique = list(islice(_unique(), own))
    tokens = unique + list(islice(_sharing({token.text for token in unique}), shared))
    tokens.sort(key=lambda token: token.parts is not None)  # the alphabet first; otherwise as they came
    free = (token for token in range(vocab_size) if token not in special)
    spelled = {**special, **{number: _spell(token.text) for number, token in zip(free, tokens, strict=True)}}
    merges = [[_spell(part) for part in token.parts] for token in tokens if token.parts]
    return _document(special, {spelled[number]: number for number in range(vocab_size)}, merges)


def _document(special: dict[int, str], vocab: dict[str, int], merges: list[list[str]]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": special[number], **flags} for number in sorted(special)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _unique() -> Iterator[_Token]:
    """Tokens with a key of their own, the most useful first, without end."""
    yield from map(_Token, " " + ascii_lowercase + digits + punctuation)
    folded = set(" " + ascii_lowercase + digits + punctuation + _WHITE + ascii_uppercase)
    yield from (_Token(chr(byte)) for byte in range(256) if chr(byte) not in folded)
    for length in count(2):
        for letters in product(ascii_lowercase, repeat=length):
            word = "".join(letters)
            yield _Token(word, (word[:-1], word[-1]))


def _sharing(texts: set[str]) -> Iterator[_Token]:
    """Tokens that share the key of one in `texts` (which holds at least the space), without end."""
    yield from map(_Token, _WHITE)
    letters = [letter for letter in ascii_lowercase if letter in texts]
    yield from (_Token(letter.upper()) for letter in letters)
    for letter in letters:
        yield from (_Token(" " + form, (" ", form)) for form in (letter, letter.upper()))
    # Words come after the whole alphabet, so where there is one, all its parts are there.
    for word in sorted((text for text in texts if len(text) > 1), key=lambda text: (len(text), text)):
        title, upper = word.capitalize(), word.upper()
        yield _Token(title, (title[:-1], title[-1]))
        yield _Token(upper, (upper[:-1], upper[-1]))
        yield from (_Token(" " + form, (" ", form)) for form in (word, title, upper))
    for length in count(2):
        for characters in product(" " + _WHITE, repeat=length):
            text = "".join(characters)
            yield _Token(text, (text[:-1], text[-1]))


def _byte_spelling() -> dict[str, str]:
    """How byte-level BPE writes each byte: printable Latin-1 as itself, the others from U+0100 on, in order."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(byte): chr(byte) for byte in kept} | {chr(byte): chr(256 + n) for n, byte in enumerate(others)}


_SPELLING = _byte_spelling()


def _spell(text: str) -> str:
    return "".join(_SPELLING[character] for character in text)
