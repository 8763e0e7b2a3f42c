"""The README's pictures of the viewer, from the page itself in a headless Chromium.

    python tests/pictures.py      # writes examples/viewer*.png anew

Look at them before you keep them.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLASH = "deepseek-v4.1-flash"
PICTURES = {
    "viewer.png": ["--target", "rocm8"],
    "viewer_one_device.png": ["--focus", "compress_kv@L20"],
}
WIDTH, HEIGHT, DENSITY = 1372, 878, 1.5


def main() -> None:
    """Write each picture."""
    sys.path.insert(0, str(ROOT))
    from dsv41c.compiler.cli import main as command
    from tests.compiler.browser import browser

    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as tab:
        for name, options in PICTURES.items():
            page = Path(folder) / "view.html"
            assert command(["graph", FLASH, *options, "--format", "html", "-o", str(page)]) == 0
            tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
            tab.open(page, WIDTH, HEIGHT, DENSITY)
            shot = tab.send("Page.captureScreenshot", format="png")
            (ROOT / "examples" / name).write_bytes(base64.b64decode(shot["data"]))
            print(f"examples/{name}")


if __name__ == "__main__":
    main()
