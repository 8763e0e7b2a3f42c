"""Text in and out: the checkpoint's tokenizer, prompts, the chat format, and text that grows token by token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.chat import Effort, Mode, Special, render
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.token_map import check_vocabulary
from dsv41c.runtime.weights.gguf.files import is_gguf
from dsv41c.runtime.weights.gguf.tokenizer import gguf_tokenizer, read_keys

TOKENIZER = "tokenizer.json"
_REPLACEMENT = "\ufffd"


def load_tokenizer(checkpoint: Path, vocab_size: int, *, text: bool = True) -> Tokenizer:
    """The tokenizer beside a checkpoint's tensors, or in its GGUF file. Without `text` one for single ids will do.

    Raises `UserFault`: DSV861 where the file is missing or cannot be read, DSV769 where a GGUF file has none that is
    known, DSV740 where its vocabulary is not the plan's.
    """
    if is_gguf(checkpoint):
        tokenizer = gguf_tokenizer(*read_keys(checkpoint), text=text)
        check_vocabulary(tokenizer, vocab_size)
        return tokenizer
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent) / TOKENIZER
    if not path.is_file():
        message = f"the checkpoint has no `{TOKENIZER}`"
        raise UserFault([Diagnostic("DSV861", message, Span(str(path)), help="copy it there from the release")])
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for everything
        message = f"`{TOKENIZER}` cannot be read: {str(error).splitlines()[0]}"
        raise UserFault([Diagnostic("DSV861", message, Span(str(path)), help="copy it again")]) from None
    check_vocabulary(tokenizer, vocab_size)
    return tokenizer


class Text:
    """Encodes and decodes with a plan's tokenizer and special tokens.

    As in the released encoder, a conversation becomes one string that is encoded whole. So text that spells a special
    token becomes that token, in user text as well; who takes text from strangers has to strip it first.
    """

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest) -> None:
        self.tokenizer = tokenizer
        self.tokens = manifest.tokens

    @staticmethod
    def load(checkpoint: Path | str, manifest: Manifest) -> Text:
        """The text side of a checkpoint. Raises `UserFault` as `load_tokenizer` does."""
        return Text(load_tokenizer(Path(checkpoint), manifest.model.vocab_size), manifest)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of plain text, with BOS in front once. Raises `UserFault` (DSV862) for lone surrogates."""
        ids = self._encode(text)
        return ids if ids[:1] == [self.tokens.bos] else [self.tokens.bos, *ids]

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of one user turn in chat mode, up to where the answer begins."""
        return self.encode_messages([{"role": "user", "content": text}])

    def encode_messages(
        self, messages: Sequence[Mapping[str, Any]], mode: Mode = "chat", effort: Effort = 50
    ) -> list[int]:
        """Token ids of a conversation, up to where the answer begins. See `chat.render` for the form.

        Raises `UserFault`: DSV864 for messages that the format cannot express, DSV863 naming every special token of the
        format that the tokenizer lacks, DSV862 for text with lone surrogates.
        """
        parts = render(messages, self._name(self.tokens.eos), mode=mode, effort=effort)
        used = dict.fromkeys(str(part) for part in parts if isinstance(part, Special))
        missing = [name for name in used if self.tokenizer.token_to_id(name) is None]
        if missing:
            raise UserFault([_missing(missing)])
        return [self.tokens.bos, *self._encode("".join(parts))]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # what Python makes of bytes that are no UTF-8
            message = f"the text is not Unicode: {text[error.start]!a} at character {error.start} is no character"
            raise UserFault([Diagnostic("DSV862", message, help="give the text in UTF-8")]) from None
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _name(self, token: int) -> str:
        return str(self.tokenizer.id_to_token(token))


class TextStream:
    """Text that grows token by token and never shows half a character.

    A token may end inside a character; decoding gives U+FFFD there until its other bytes come. All but the last of
    several U+FFFD are settled, since an unfinished character is always the last one.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._pending: list[int] = []
        self._shown = 0

    def push(self, token: int) -> str:
        """What a token adds to the text; empty while a character is unfinished."""
        self._pending.append(token)
        return self._new(final=False)

    def finish(self) -> str:
        """What is left at the end: U+FFFD where the last character stayed unfinished."""
        return self._new(final=True)

    def _new(self, *, final: bool) -> str:
        text = self._text.decode(self._pending)
        unfinished = text.endswith(_REPLACEMENT) and not final
        settled = text[:-1] if unfinished else text
        new = settled[self._shown :]
        self._shown = len(settled)
        if not unfinished:
            self._pending, self._shown = [], 0
        return new


def _missing(names: Sequence[str]) -> Diagnostic:
    listed = ", ".join(f"`{name}`" for name in names)
    return Diagnostic(
        "DSV863",
        f"the tokenizer lacks special tokens of the chat format: {listed}",
        help="use a plain prompt, or the tokenizer.json of the release",
    )
