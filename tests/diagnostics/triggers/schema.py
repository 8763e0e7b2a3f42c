"""Triggers of 2xx codes that no single spec text can show: chains, targets, overrides, imports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsv41c.compiler.importing import import_config
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic

CONFIG = Path(__file__).resolve().parents[2] / "golden" / "tiny" / "config.json"


def _circle(folder: Path) -> list[Diagnostic]:
    (folder / "a.yaml").write_text("extends: b.yaml\n")
    (folder / "b.yaml").write_text("extends: a.yaml\n")
    return list(load(str(folder / "a.yaml")).diagnostics)


def _target(folder: Path) -> list[Diagnostic]:
    (folder / "machine.yaml").write_text("model: {dim: 256}\n")
    return list(load("toy", target=str(folder / "machine.yaml")).diagnostics)


def _override(folder: Path) -> list[Diagnostic]:
    return list(load("toy", sets=["layers.kv_source_layers.7=3"]).diagnostics)


def _config(changes: Mapping[str, Any], text: Mapping[str, Any]) -> Callable[[Path], list[Diagnostic]]:
    """Import of the tiny config with some keys changed; None removes one."""

    def trigger(folder: Path) -> list[Diagnostic]:
        config = json.loads(CONFIG.read_text())
        for place, values in ((config, changes), (config["text_config"], text)):
            place.update(values)
            for key in [key for key, value in values.items() if value is None]:
                del place[key]
        (folder / "config.json").write_text(json.dumps(config))
        return list(import_config(str(folder / "config.json")).diagnostics)

    return trigger


TRIGGERS: dict[str, Callable[[Path], list[Diagnostic]]] = {
    "DSV221": _circle,
    "DSV223": _target,
    "DSV224": _override,
    "DSV230": _config({"model_type": "deepseek_v4"}, {}),
    "DSV231": _config({"num_hidden_layers": 13}, {}),
    "DSV232": _config({"quantization_config": {"quant_method": "exl3"}}, {}),
    "DSV233": _config({}, {"hidden_act": "gelu"}),
    "DSV234": _config({}, {"colour": "blue"}),
    "DSV235": _config({}, {"kv_sources_layer": [2]}),
    "DSV236": _config({"bos_token_id": None}, {}),
    "DSV237": _config({}, {"index_source_layer_ids": None}),
}
