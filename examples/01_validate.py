"""Checks a spec with a mistake in it, and prints each finding: code, place, message, way out."""

import tempfile
from pathlib import Path

from dsv41c.compiler import check, load

BROKEN = """\
extends: toy
layers:
  kv_source_layers: [2]       # layers 5 to 7 have ratio 1, and now read a history of ratio 2
  index_source_layer: [2]     # and this key does not exist
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "broken.yaml")
        file.write_text(BROKEN)
        for finding in check(load(str(file))):
            line = f"line {finding.span.line}" if finding.span else "nowhere"
            print(f"{finding.code} at {line}: {finding.message}")
            print(f"    {finding.help}")


if __name__ == "__main__":
    main()
