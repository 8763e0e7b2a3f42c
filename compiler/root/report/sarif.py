"""Findings as SARIF 2.1.0, for code scanning. Lines and columns start at 1, URIs are relative, rules sorted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from dsv41c import __version__
from dsv41c.codes import TABLE
from dsv41c.diagnostics import Diagnostic, Span, ordered
from dsv41c.report.summary import left_out

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None) -> str:
    """The SARIF form, one run."""
    found = ordered(diagnostics)
    codes = sorted({each.code for each in found})
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "dsv41c", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, codes.index(each.code)) for each in found],
    }
    if more := left_out(found):
        told = [_notification(code, codes.index(code), count) for code, count in more.items()]
        run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": told}]
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, sort_keys=True) + "\n"


def _rule(code: str) -> dict[str, Any]:
    entry = TABLE[code]
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in entry.name.split("-")),
        "shortDescription": {"text": entry.summary},
        "fullDescription": {"text": entry.explanation.strip() or entry.summary},
        "help": {"text": entry.explanation.strip() or entry.summary, "markdown": entry.explanation},
        "defaultConfiguration": {"level": entry.severity},
    }


def _result(diagnostic: Diagnostic, index: int) -> dict[str, Any]:
    words = [diagnostic.message, *(f"{name} is {value}" for name, value in diagnostic.facts)]
    words += [f"help: {diagnostic.help}"] if diagnostic.help else []
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": index,
        "level": diagnostic.severity,
        "message": {"text": _plain("\n".join([*words, *diagnostic.notes])) or diagnostic.code},
        "locations": [_location(diagnostic.span)] if diagnostic.span else [],
    }
    if diagnostic.labels:
        result["relatedLocations"] = [
            {**_location(label.span), "id": number, "message": {"text": _plain(label.text) or "takes part"}}
            for number, label in enumerate(diagnostic.labels, 1)
        ]
    if diagnostic.fix:
        result["fixes"] = [_fix(diagnostic)]
    return result


def _notification(code: str, index: int, count: int) -> dict[str, Any]:
    """That there were more results of a rule than are listed."""
    message = {"text": f"{count:,} more of {code} that are not shown"}
    return {"level": "warning", "message": message, "associatedRule": {"id": code, "index": index}}


def _plain(text: str) -> str:
    """A message without links: SARIF takes `[text](target)` for one, also in plain text."""
    return text.replace("](", "\\](")


def _fix(diagnostic: Diagnostic) -> dict[str, Any]:
    """The edits of a finding, which are all in one file."""
    replacements = [
        {"deletedRegion": _exact(edit.span), "insertedContent": {"text": edit.text}} for edit in diagnostic.fix
    ]
    change = {"artifactLocation": {"uri": _uri(diagnostic.fix[0].span.file)}, "replacements": replacements}
    return {
        "description": {"text": _plain(diagnostic.help or diagnostic.message) or diagnostic.code},
        "artifactChanges": [change],
    }


def _exact(span: Span) -> dict[str, int]:
    """A region with its end, which for an insertion is where it starts."""
    first = {"startLine": max(span.line, 1), "startColumn": max(span.column, 1)}
    return {**first, "endLine": max(span.end_line, 1), "endColumn": max(span.end_column, 1)}


def _location(span: Span) -> dict[str, Any]:
    region = {"startLine": max(span.line, 1), "startColumn": max(span.column, 1)}
    end = (span.end_line, max(span.end_column, 1))
    if end > (region["startLine"], region["startColumn"]):
        region |= {"endLine": end[0], "endColumn": end[1]}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(span.file)}, "region": region}}


def _uri(file: str) -> str:
    """A relative URI; an absolute path is given from the working directory."""
    path = os.path.relpath(file) if os.path.isabs(file) else file
    return quote(PurePath(path).as_posix().encode("utf-8", "replace"), safe="/") or "."
