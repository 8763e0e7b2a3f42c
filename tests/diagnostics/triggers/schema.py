"""Triggers of 2xx codes that no single spec text can show: chains, targets, overrides, imports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsv41c.compiler.importing import Imported, import_config
from dsv41c.compiler.spec import Loaded, load

CONFIG = Path(__file__).resolve().parents[2] / "golden" / "tiny" / "config.json"


def _extending(base: str) -> Callable[[Path], Loaded]:
    """A spec that extends another one, which extends `base`."""

    def trigger(folder: Path) -> Loaded:
        (folder / "a.yaml").write_text("extends: b.yaml\n")
        (folder / "b.yaml").write_text(f"extends: {base}\n")
        return load(str(folder / "a.yaml"))

    return trigger


def _target(text: str) -> Callable[[Path], Loaded]:
    def trigger(folder: Path) -> Loaded:
        (folder / "machine.yaml").write_text(text)
        return load("toy", target=str(folder / "machine.yaml"))

    return trigger


def _override(text: str) -> Callable[[Path], Loaded]:
    return lambda _: load("toy", sets=[text])


def _config(changes: Mapping[str, Any], text: Mapping[str, Any]) -> Callable[[Path], Imported]:
    """Import of the tiny config with some keys changed; None removes one."""

    def trigger(folder: Path) -> Imported:
        config = json.loads(CONFIG.read_text())
        for place, values in ((config, changes), (config["text_config"], text)):
            place.update(values)
            for key in [key for key, value in values.items() if value is None]:
                del place[key]
        (folder / "config.json").write_text(json.dumps(config))
        return import_config(str(folder / "config.json"))

    return trigger


RELEASED = _config({}, {})

TRIGGERS = {
    "DSV221": (_extending("a.yaml"), _extending("toy")),
    "DSV223": (_target("model: {dim: 256}\n"), _target("numerics: {compute: f32}\n")),
    "DSV224": (_override("layers.kv_source_layers.7=3"), _override("layers.kv_source_layers.1=5")),
    "DSV230": (_config({"model_type": "deepseek_v4"}, {}), RELEASED),
    "DSV231": (_config({"num_hidden_layers": 13}, {}), _config({"num_hidden_layers": 10}, {})),
    "DSV232": (_config({"quantization_config": {"quant_method": "exl3"}}, {}), RELEASED),
    "DSV233": (_config({}, {"hidden_act": "gelu"}), _config({}, {"hidden_act": "silu"})),
    "DSV234": (_config({}, {"colour": "blue"}), RELEASED),
    "DSV235": (_config({}, {"kv_sources_layer": [2]}), RELEASED),
    "DSV236": (_config({"bos_token_id": None}, {}), RELEASED),
    "DSV237": (_config({}, {"index_source_layer_ids": None}), RELEASED),
}
