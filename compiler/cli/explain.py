"""`explain`: what a code means and how to get out, the list of all codes, or what an editor wants to know of specs."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from difflib import get_close_matches
from importlib import resources
from textwrap import indent

from dsv41c.codes import TABLE, Code
from dsv41c.codes.situations import SITUATIONS
from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.parsing import UsageError


def work(arguments: Namespace, console: Console) -> int:
    """Print one code's page, the list, or the schema."""
    if arguments.schema:
        if arguments.code is not None:
            raise UsageError("`--schema` goes without a code")
        console.result((resources.files("dsv41c.specs") / "spec.schema.json").read_text(encoding="utf-8"))
        return 0
    if arguments.code is None:
        console.result(_list_json() if arguments.json else _list())
        return 0
    code = _find(arguments.code)
    console.result(json.dumps(_data(code), indent=2, ensure_ascii=False) + "\n" if arguments.json else page(code))
    return 0


def _find(word: str) -> Code:
    by_name = {code.name: code for code in TABLE.values()}
    code = TABLE.get(word.upper()) or by_name.get(word.lower())
    if code is None:
        near = get_close_matches(word.upper(), TABLE, n=1) or get_close_matches(word.lower(), by_name, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "`dsv41c explain` lists all"
        raise UsageError(f"`{word}` is not a code; {hint}")
    return code


def page(code: Code) -> str:
    """A code's page as text."""
    parts = [f"{code.code} {code.name} ({code.severity})\n", f"{code.summary}\n", code.explanation.strip() + "\n"]
    bad, good = _example(code)
    if bad:
        parts.append("This gives it:\n\n" + indent(bad.strip(), "    ") + "\n")
        parts.append("And this is mended:\n\n" + indent(good.strip(), "    ") + "\n")
    return "\n".join(parts)


def _example(code: Code) -> tuple[str, str]:
    """How a code comes about and the same mended: specs, or what else there is to say."""
    return (code.bad, code.good) if code.bad else SITUATIONS.get(code.code, ("", ""))


def _data(code: Code) -> dict[str, str]:
    """A code as data, with its example whatever that is."""
    bad, good = _example(code)
    return {**asdict(code), "bad": bad, "good": good}


def _list() -> str:
    width = max(len(code.name) for code in TABLE.values())
    lines = [
        f"{code.code}  {code.severity:7}  {code.name:{width}}  {code.summary}" for _, code in sorted(TABLE.items())
    ]
    return "\n".join(lines) + "\n"


def _list_json() -> str:
    return json.dumps([_data(code) for _, code in sorted(TABLE.items())], indent=2, ensure_ascii=False) + "\n"
