"""Plans for the tests of weights: manifests made by hand, from the catalogue and a config in the release's layout."""

import importlib.util
import json
import struct
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def _load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hand = _load("hand_made_plans", HERE / "hand_made.py")


@pytest.fixture(scope="session")
def plans():
    """The module hand_made.py: `tiny()`, `small()`, `manifest(entries)`, `entry(...)`, `write(...)`."""
    return hand


@pytest.fixture(scope="session")
def tiny_folder():
    return HERE.parents[1] / "golden" / "tiny"


@pytest.fixture(scope="session")
def tiny_data(tiny_folder):
    """Everything in the golden checkpoint: {name: (dtype, shape, bytes)}."""
    data = {}
    for path in sorted(tiny_folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        for name, e in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = e["data_offsets"]
                data[name] = (e["dtype"], e["shape"], raw[8 + length + begin : 8 + length + end])
    return data


@pytest.fixture
def changed(tmp_path, tiny_data, plans):
    """Write the golden checkpoint with tensors changed (None removes one) as one file; gives its path."""

    def write(changes, rename=lambda name: name):
        tensors = {rename(name): tensor for name, tensor in {**tiny_data, **changes}.items() if tensor is not None}
        plans.write(tmp_path / "changed.safetensors", tensors)
        return tmp_path / "changed.safetensors"

    return write
