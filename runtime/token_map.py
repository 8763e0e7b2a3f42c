"""Compressed token ids, as the engram hash uses them: tokens that read the same share one.

The rule is the released model's. For each id in order: decode the single id; if that is not whole UTF-8, the key is
the vocabulary's own string; else normalise the text, and where nothing is left keep it as it was. A compressed id
is the rank of its key by first appearance. The normaliser is the `tokenizers` one on purpose: it drops all
combining marks and lowers letter by letter, where Python's own functions differ in a few entries, and one entry
moves every row of the tables.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Regex, Tokenizer, normalizers

from dsv41c.diagnostics import Diagnostic, UserFault

_LONE_SPACE = "\ue000"  # private use: keeps a text that is one space from being stripped away
_REPLACEMENT = "\ufffd"


def normaliser() -> Callable[[str], str]:
    """What brings texts that read the same to one form. May give an empty text."""
    steps = [
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"\A \z"), _LONE_SPACE),
        normalizers.Strip(),
        normalizers.Replace(_LONE_SPACE, " "),
    ]
    return normalizers.Sequence(steps).normalize_str


def token_keys(tokenizer: Tokenizer, vocab_size: int) -> list[str]:
    """The key of every token id from 0. Raises UserFault unless the ids are exactly 0 to `vocab_size` - 1."""
    check_vocabulary(tokenizer, vocab_size)
    normalise = normaliser()
    keys = []
    for token in range(vocab_size):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if _REPLACEMENT in text:
            keys.append(tokenizer.id_to_token(token) or text)
        else:
            keys.append(normalise(text) or text)
    return keys


def token_map(tokenizer: Tokenizer, vocab_size: int, compressed_vocab_size: int | None = None) -> list[int]:
    """The compressed id of every token id; dense, counted from 0 by first appearance.

    Raises UserFault when the ids are not 0 to `vocab_size` - 1, or when the number of distinct keys is not
    `compressed_vocab_size` (None: not checked).
    """
    ranks: dict[str, int] = {}
    compressed = [ranks.setdefault(key, len(ranks)) for key in token_keys(tokenizer, vocab_size)]
    if compressed_vocab_size not in (None, len(ranks)):
        text = f"the tokenizer has {len(ranks):,} distinct normalised tokens, the plan says {compressed_vocab_size:,}"
        help_text = "use the tokenizer.json of this checkpoint, or correct `engram.compressed_vocab_size`"
        raise UserFault([Diagnostic("DSV741", text, help=help_text)])
    return compressed


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise UserFault unless the tokenizer's ids are exactly 0 to `vocab_size` - 1."""
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values())
    if len(ids) == vocab_size and max(ids, default=-1) < vocab_size:
        return
    text = f"the tokenizer has {len(ids):,} ids up to {max(ids, default=-1):,}, expected 0 to {vocab_size - 1:,}"
    gap = next((token for token in range(vocab_size) if token not in ids), None)
    facts = (("first id without a token", str(gap)),) if gap is not None else ()
    help_text = "use the tokenizer.json of this checkpoint"
    raise UserFault([Diagnostic("DSV740", text, facts=facts, help=help_text)])
