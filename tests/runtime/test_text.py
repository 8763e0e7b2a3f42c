"""Text in and out: prompts, the chat format, and text that grows token by token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden_tiny import TINY, plan
from tokenizers import Tokenizer

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.chat import render
from dsv41c.runtime.text import Text, TextStream, load_tokenizer

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
LINE = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
CHAT_TOKENS = ["</think>", "<think>", "<｜System｜>"]


@pytest.fixture(scope="module")
def plain() -> Text:
    """The golden checkpoint's tokenizer, which has no token that ends thinking."""
    return Text.load(TINY, plan().manifest)


@pytest.fixture(scope="module")
def chatty() -> Text:
    """The same with the chat format's tokens."""
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    tokenizer.add_special_tokens(CHAT_TOKENS)
    return Text(tokenizer, plan().manifest)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, reasoning: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"reasoning_content": reasoning} if reasoning else {})


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def written(*messages: dict[str, Any], **options: Any) -> str:
    return "".join(render(messages, EOS, **options))


def codes(fault: pytest.ExceptionInfo[UserFault]) -> list[str]:
    return [diagnostic.code for diagnostic in fault.value.diagnostics]


# --- the chat format ------------------------------------------------------------------------------------------------


def test_released_examples() -> None:
    assert written(user("hi")) == "<｜User｜>hi<｜Assistant｜></think>"
    thinking = f"<｜System｜>{LINE.format(50)}<｜User｜>hi<｜Assistant｜><think>"
    assert written(user("hi"), mode="thinking") == thinking
    turns = written(user("a"), assistant("b"), user("c"))
    assert turns == f"<｜User｜>a<｜Assistant｜></think>b{EOS}<｜User｜>c<｜Assistant｜></think>"


def test_system_texts() -> None:
    assert written(system("S"), user("hi")) == "<｜System｜>S<｜User｜>hi<｜Assistant｜></think>"
    both = written(system("S"), user("hi"), mode="thinking")
    assert both == f"<｜System｜>{LINE.format(50)}S<｜User｜>hi<｜Assistant｜><think>"
    later = written(user("a"), assistant("b"), system("S"))
    assert later == f"<｜User｜>a<｜Assistant｜></think>b{EOS}<｜System｜>S<｜Assistant｜></think>"


@pytest.mark.parametrize(
    ("effort", "number"), [("low", 25), ("high", 50), ("xhigh", 75), ("max", 100), (1, 1), (99, 99)]
)
def test_effort(effort: Any, number: int) -> None:
    assert LINE.format(number) in written(user("hi"), mode="thinking", effort=effort)
    assert "Effort" not in written(user("hi"), effort=effort)


def test_user_and_tool_turns_merge() -> None:
    merged = written(user("a"), user("b"), tool("r1"), tool("r2"), user("c"))
    results = "<tool_result>r1</tool_result>\n\n<tool_result>r2</tool_result>"
    assert merged == f"<｜User｜>a\n\nb\n\n{results}\n\nc<｜Assistant｜></think>"


def test_blocks_are_joined_by_empty_lines() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert written({"role": "user", "content": blocks}) == written(user("a\n\nb"))


def test_earlier_reasoning_is_dropped() -> None:
    turns = (user("a"), assistant("b", "why"), user("c"))
    asked = written(*turns, mode="thinking")
    assert asked.endswith(f"<｜User｜>a<｜Assistant｜></think>b{EOS}<｜User｜>c<｜Assistant｜><think>")
    done = written(*turns, assistant("d", "because"), mode="thinking")
    assert done.endswith(f"</think>b{EOS}<｜User｜>c<｜Assistant｜><think>because</think>d{EOS}")
    assert "because" not in written(*turns, assistant("d", "because"), mode="chat")


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        ([], {}, "no messages"),
        ([{"role": "robot", "content": "x"}], {}, "robot"),
        ([user("see <｜deepseek_image｜>")], {}, "image"),
        ([assistant("x")], {}, "without a user"),
        ([system("s"), assistant("x")], {}, "without a user"),
        ([user("a"), assistant("x"), assistant("y")], {}, "message 2"),
        ([{"role": "user", "content": None}], {}, "no text"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "no text"),
        ([{"role": "user", "content": ["x"]}], {}, "no text"),
        ([{"role": "user"}], {}, "no text"),
        ([user("a") | {"tools": []}], {}, "tools"),
        ([user("a")], {"mode": "deep"}, "deep"),
        ([user("a")], {"effort": 0}, "effort"),
        ([user("a")], {"effort": 101}, "effort"),
        ([user("a")], {"effort": "huge"}, "effort"),
        ([user("a")], {"effort": True}, "effort"),
    ],
)
def test_what_the_format_cannot_express(messages: list[Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserFault, match=words) as fault:
        render(messages, EOS, **options)
    assert codes(fault) == ["DSV864"]


# --- encoding -------------------------------------------------------------------------------------------------------


def test_a_prompt_has_bos_once(plain: Text) -> None:
    ids = plain.encode_prompt("hello")
    assert ids[0] == 0 and 0 not in ids[1:]
    assert plain.encode_prompt(f"{BOS}hello") == ids
    assert plain.encode_prompt("") == [0]
    assert plain.decode(ids) == "hello"


@pytest.mark.parametrize("text", ["\udcff", "half \ud83d"])
def test_bytes_that_are_no_text(plain: Text, chatty: Text, text: str) -> None:
    for encode in (plain.encode_prompt, chatty.encode_chat):
        with pytest.raises(UserFault) as fault:
            encode(text)
        assert [finding.code for finding in fault.value.diagnostics] == ["DSV862"]
        str(fault.value).encode()


def test_chat_ids(chatty: Text) -> None:
    end_think, think, front = (chatty.tokenizer.token_to_id(name) for name in CHAT_TOKENS)
    hi = chatty.tokenizer.encode("hi", add_special_tokens=False).ids
    assert chatty.encode_chat("hi") == [0, 3, *hi, 4, end_think]
    thinking = chatty.encode_messages([user("hi")], mode="thinking")
    assert thinking[:2] == [0, front] and thinking[-1] == think
    finished = chatty.encode_messages([user("hi"), assistant("hi"), user("hi")])
    assert finished == [0, 3, *hi, 4, end_think, *hi, 1, 3, *hi, 4, end_think]


def test_text_that_spells_a_special_token_becomes_it(chatty: Text) -> None:
    """As in the released encoder, which encodes the whole conversation as one string."""
    assert chatty.encode_chat("a<｜Assistant｜>b").count(4) == 2


def test_missing_special_tokens_are_named(plain: Text) -> None:
    with pytest.raises(UserFault, match="`</think>`") as fault:
        plain.encode_chat("hi")
    assert codes(fault) == ["DSV863"] and "<think>" not in str(fault.value).replace("</think>", "")
    with pytest.raises(UserFault) as fault:
        plain.encode_messages([user("hi")], mode="thinking")
    assert "`<｜System｜>`, `<think>`" in str(fault.value)
    with pytest.raises(UserFault):
        plain.encode_chat("<think>")  # a text that merely spells a name does not ask for it
    assert plain.encode_prompt("<think>")[0] == 0


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model": 3}'])
def test_broken_tokenizers(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserFault) as fault:
        load_tokenizer(tmp_path, 512)
    assert codes(fault) == ["DSV861"]


def test_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserFault, match="the checkpoint has no") as fault:
        Text.load(tmp_path, plan().manifest)
    assert codes(fault) == ["DSV861"]
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert load_tokenizer(tmp_path / "model.safetensors", 512).get_vocab_size() == 512


def test_another_vocabulary() -> None:
    with pytest.raises(UserFault) as fault:
        load_tokenizer(TINY, 513)
    assert codes(fault) == ["DSV740"]


# --- text that grows ------------------------------------------------------------------------------------------------


def byte_tokens(text: Text, raw: bytes) -> list[int]:
    """Tokens of single bytes, by the byte-level alphabet."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    table = {}
    for letter in alphabet:
        token = text.tokenizer.token_to_id(letter)
        if token is not None:
            table[letter] = token
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [table[letters[byte]] for byte in raw]


@pytest.mark.parametrize("string", ["plain", "é", "中文字", "a😀b", "😀😀", "日本 x é"])
def test_no_half_characters(plain: Text, string: str) -> None:
    tokens = byte_tokens(plain, string.encode())
    stream = TextStream(plain)
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.finish() == string
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe\x80a", b"\xe4\xb8", b"a\xf0\x9f\x98", b"\xe4\xe4\xb8\xad\x80", bytes(range(128, 256))]
)
def test_broken_bytes_come_out_as_decoding_gives_them(plain: Text, raw: bytes) -> None:
    tokens = byte_tokens(plain, raw)
    stream = TextStream(plain)
    grown = ""
    for token in tokens:
        grown += stream.push(token)
        assert raw.decode("utf-8", "replace").startswith(grown)
    assert grown + stream.finish() == plain.decode(tokens) == raw.decode("utf-8", "replace")


def test_special_tokens_have_no_text(plain: Text) -> None:
    stream = TextStream(plain)
    assert stream.push(1) + stream.finish() == ""


def test_the_golden_tokenizer_is_byte_level() -> None:
    data = json.loads((TINY / "tokenizer.json").read_text())
    assert data["decoder"]["type"] == "ByteLevel"
