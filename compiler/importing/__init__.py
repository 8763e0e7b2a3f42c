"""Configs and GGUF files of the model in, specs out; and the config that a spec stands for."""

from dsv41c.compiler.importing.against import other_model
from dsv41c.compiler.importing.gguf import import_gguf
from dsv41c.compiler.importing.importer import Imported, import_config

__all__ = ["Imported", "import_config", "import_gguf", "other_model"]
