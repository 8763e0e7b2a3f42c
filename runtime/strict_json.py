"""JSON that anybody may have written: an object in UTF-8, every key once, and no endless parts."""

from __future__ import annotations

import json
from typing import Any


class NotJsonError(Exception):
    """Not such a document. The text ends a sentence: "the manifest ..."; `line` and `column` say where."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def read_object(data: bytes) -> dict[str, Any]:
    """The object that some bytes hold. Raises `NotJsonError`. Whoever calls bounds the size."""
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise NotJsonError(f"is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise NotJsonError(f"is not JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise NotJsonError("is nested too deeply") from None
    except ValueError:
        raise NotJsonError("holds a number of too many digits") from None
    if not isinstance(content, dict):
        raise NotJsonError("is not a JSON object")
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise NotJsonError(f"says {twice[:100]!a} twice in one object")
    return content


def _no_constant(text: str) -> object:
    raise NotJsonError(f"holds {text}, which is not a JSON number")
