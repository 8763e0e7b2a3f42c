"""The JSON Schema of specs, for editors: completion and hints while typing. The tool itself validates by the models.

It keeps to draft 7, which every editor reads, and accepts what the tool accepts: aliases, the compact ratio map, and
partial sections where `extends` fills the rest. `dsv41c explain --schema` prints it.
`python -m dsv41c.compiler.spec.json_schema > specs/spec.schema.json` writes it; a test keeps the file fresh.
"""

from __future__ import annotations

import json
from typing import Any

from dsv41c.compiler.spec.aliases import ALIASES
from dsv41c.compiler.spec.models import FORMAT, OPTIONAL_SECTIONS, SECTIONS, Spec

# Fields the models require because normalisation fills them in.
_FILLED = {"placement": {"layer_ends"}, "runtime": {"max_context", "max_sessions", "prefill_chunk", "decode_buckets"}}
_INNER = {"rope.yarn": "Yarn", "runtime.capture": "CaptureEvery"}  # models of maps within a section
_NULLABLE = {"layers": ("candidate_source_layer", "engram_layers", "reads")}


def spec_schema() -> dict[str, Any]:
    """The schema as data."""
    whole = Spec.model_json_schema()
    definitions: dict[str, Any] = whole["$defs"]
    required: dict[str, list[Any]] = {}
    for name, model in SECTIONS.items():
        definition = definitions[model.__name__]
        required[name] = _loosen(definition, name)
        _ratio_map(definition)
    yarn = definitions["Yarn"]
    yarn_required = _loosen(yarn, "rope.yarn")
    places = {**{name: model.__name__ for name, model in SECTIONS.items()}, **_INNER}
    for place, model_name in places.items():
        _title(definitions[model_name], place)
    properties = whole["properties"]
    for name in SECTIONS:
        properties[name] = {"$ref": f"#/$defs/{SECTIONS[name].__name__}"}
        if name in OPTIONAL_SECTIONS:
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
        properties[name]["description"] = definitions[SECTIONS[name].__name__]["description"]
    properties["extends"] = {
        "description": "Shipped spec, or file beside this one, to start from; maps merge, lists are replaced.",
        "type": "string",
    }
    for name, item in properties.items():
        item["title"] = name
    overlay = {name: {"allOf": rules} for name, rules in required.items() if rules}
    overlay["rope"] = {"allOf": [*required["rope"], {"properties": {"yarn": {"allOf": yarn_required}}}]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": FORMAT,
        "description": (Spec.__doc__ or "").strip(),
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "if": {"required": ["extends"]},
        "else": {
            "required": ["format", "name", *(name for name in SECTIONS if name not in OPTIONAL_SECTIONS)],
            "properties": overlay,
        },
        "$defs": definitions,
    }


def _title(definition: dict[str, Any], place: str) -> None:
    """Title a definition and its properties by where they stand, which editors show as a heading."""
    definition["title"] = place
    for key, item in definition["properties"].items():
        item["title"] = f"{place}.{ALIASES.get(place, {}).get(key, key)}"


def to_text() -> str:
    """The schema as the text of its file."""
    return json.dumps(spec_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _loosen(definition: dict[str, Any], section: str) -> list[Any]:
    """Add aliases to a definition, take its `required` out, and give the rules that stand for it."""
    properties: dict[str, Any] = definition["properties"]
    spellings: dict[str, list[str]] = {key: [key] for key in properties}
    for alias, key in ALIASES.get(section, {}).items():
        spellings[key].append(alias)
        properties[alias] = {
            **properties[key],
            "description": f"Other spelling of `{key}`: {properties[key]['description']}",
        }
    for key in _NULLABLE.get(section, ()):
        for spelling in spellings[key]:
            described = properties[spelling].pop("description", "")
            properties[spelling].pop("default", None)
            properties[spelling] = {"description": described, "anyOf": [properties[spelling], {"type": "null"}]}
    rules: list[Any] = []
    for key in definition.pop("required", ()):
        if key in _FILLED.get(section, ()):
            continue
        names = spellings[key]
        if len(names) == 1:
            rules.append({"required": names})
        else:
            rules.append({"anyOf": [{"required": [name]} for name in names]})
    return rules


def _ratio_map(definition: dict[str, Any]) -> None:
    """Let `compress_ratios` be a compact map too, and keys of `reads` layer numbers."""
    ratios = definition["properties"].get("compress_ratios")
    if ratios is None:
        return
    description = ratios.pop("description")
    entry = {"type": "integer", "minimum": 0}
    compact = {
        "type": "object",
        "patternProperties": {r"^\s*[0-9]+\s*(-\s*[0-9]+\s*)?$": entry},
        "additionalProperties": False,
    }
    definition["properties"]["compress_ratios"] = {"description": description, "anyOf": [ratios, compact]}


if __name__ == "__main__":
    print(to_text(), end="")
