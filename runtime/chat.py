"""The chat format of the released model: a conversation as one string.

    BOS [<｜System｜> [effort line] [system text]] then, for each turn:
    <｜User｜>text <｜Assistant｜></think>answer EOS            without reasoning
    <｜User｜>text <｜Assistant｜><think>reasoning</think>answer EOS   with it

Nothing stands between turns. Tool definitions, tool calls and images are not expressed here and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from dsv41c.diagnostics import Diagnostic, UserFault

Mode = Literal["chat", "thinking"]
Effort = int | Literal["low", "high", "xhigh", "max"]


class Special(str):
    """The name of a special token that the format itself puts in, as opposed to text that happens to spell it."""


SYSTEM: Final = Special("<｜System｜>")
USER: Final = Special("<｜User｜>")
ASSISTANT: Final = Special("<｜Assistant｜>")
THINK: Final = Special("<think>")
END_THINK: Final = Special("</think>")
IMAGE: Final = "<｜deepseek_image｜>"
EFFORTS: Final[Mapping[str, int]] = {"low": 25, "high": 50, "xhigh": 75, "max": 100}
_ROLES: Final = ("system", "user", "tool", "assistant")
_KEYS: Final = {"role", "content", "reasoning_content"}


def render(messages: Sequence[Mapping[str, Any]], eos: str, *, mode: Mode = "chat", effort: Effort = 50) -> list[str]:
    """The parts of a conversation without its BOS, up to where the answer begins; special tokens are `Special`.

    Messages are `{role, content}` with roles system, user, tool and assistant (which may have `reasoning_content`);
    content is text or a list of `{type: text, text}` blocks, joined by empty lines. A system text at the front shares
    its segment with the effort line of thinking mode; a later one is a turn of its own. Consecutive user and tool
    messages are one turn. Reasoning is kept only after the last user turn. `effort`: 1 to 100, low, high, xhigh or max.
    Raises `UserFault` (DSV864) with every finding.
    """
    faults = [*_setting_faults(mode, effort), *_message_faults(messages)]
    if faults:
        raise UserFault(faults)
    turns = _turns(messages)
    last_user = max((index for index, (role, _, _) in enumerate(turns) if role != "assistant"), default=-1)
    parts = _front(turns, mode, effort)
    begin = 1 if turns[0][0] == "system" else 0
    for index, (role, text, reasoning) in enumerate(turns[begin:], start=begin):
        if role == "assistant":
            kept = mode == "thinking" and index > last_user
            parts += [reasoning, END_THINK] if kept else []
            parts += [text, Special(eos)]
            continue
        parts += [SYSTEM if role == "system" else USER, text]
        if index + 1 == len(turns) or turns[index + 1][0] == "assistant":
            thinks = mode == "thinking" and index == last_user
            parts += [ASSISTANT, THINK if thinks else END_THINK]
    return parts


def _front(turns: Sequence[tuple[str, str, str]], mode: Mode, effort: Effort) -> list[str]:
    """The system segment at the front, if there is anything to say in it."""
    parts: list[str] = []
    if mode == "thinking":
        level = EFFORTS[effort] if isinstance(effort, str) else effort
        scale = "range 1-100, the higher the value, the more thorough the reasoning"
        parts.append(f"Reasoning Effort: {level} ({scale})\n\n")
    if turns[0][0] == "system":
        parts.append(turns[0][1])
    return [SYSTEM, *parts] if parts else []


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(role, text, reasoning) with consecutive user and tool messages merged into one user turn."""
    turns: list[tuple[str, str, str]] = []
    for message in messages:
        role, text = str(message["role"]), _text(message["content"])
        if role == "tool":
            role, text = "user", f"<tool_result>{text}</tool_result>"
        if role == "user" and turns and turns[-1][0] == "user":
            text = f"{turns.pop()[1]}\n\n{text}"
        turns.append((role, text, str(message.get("reasoning_content") or "")))
    return turns


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n\n".join(block["text"] for block in content)


# --- what the format cannot express -----------------------------------------------------------------------------------


def _fault(message: str, help_text: str | None = None) -> Diagnostic:
    return Diagnostic("DSV864", message, help=help_text)


def _setting_faults(mode: object, effort: object) -> list[Diagnostic]:
    faults = []
    if mode not in ("chat", "thinking"):
        faults.append(_fault(f"mode `{mode}` is neither `chat` nor `thinking`"))
    named = isinstance(effort, str) and effort in EFFORTS
    if not named and not (isinstance(effort, int) and not isinstance(effort, bool) and 1 <= effort <= 100):
        known = ", ".join(EFFORTS)
        faults.append(_fault(f"reasoning effort `{effort}` is no number from 1 to 100", f"or one of {known}"))
    return faults


def _message_faults(messages: Sequence[Mapping[str, Any]]) -> list[Diagnostic]:
    faults = [] if messages else [_fault("the conversation has no messages")]
    previous = None
    for index, message in enumerate(messages):
        role, where = message.get("role"), f"message {index}"
        if role not in _ROLES:
            faults.append(_fault(f"{where} has role `{role}`", f"roles are {', '.join(_ROLES)}"))
        if role == "assistant" and previous not in ("user", "tool", "system"):
            faults.append(_fault(f"{where} is an assistant's without a user's before it"))
        if role == "assistant" and previous == "system" and index == 1:
            faults.append(_fault(f"{where} is an assistant's without a user's before it"))
        unknown = sorted(key for key in message if key not in _KEYS)
        if unknown:
            faults.append(_fault(f"{where} has {', '.join(f'`{key}`' for key in unknown)}, which text cannot express"))
        faults += _content_faults(message.get("content"), role, where)
        previous = role
    return faults


def _content_faults(content: object, role: object, where: str) -> list[Diagnostic]:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    faults = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        text = block.get("text") if isinstance(block, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            faults.append(_fault(f"{where} has content that is no text", "content is text, or blocks of type `text`"))
        elif role != "assistant" and IMAGE in text:
            faults.append(_fault(f"{where} contains `{IMAGE}`, which stands for an image", "take it out of the text"))
    return faults
