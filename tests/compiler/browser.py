"""A headless Chromium, driven through its debugging port; tests that need one skip where there is none."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Page:
    """A tab. `errors` are exceptions and messages of the console, `requests` every address that it asked for."""

    def __init__(self, socket) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded = False

    def send(self, method: str, **parameters):
        """The result of a command; what the page tells meanwhile is kept."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=30))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._told(message)

    def _told(self, message) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(told["exceptionDetails"]["exception"].get("description", "?"))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.errors.append(str(told["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def open(self, file: Path, width: int = 1400, height: int = 900, density: float = 1) -> None:
        """Load a file and wait for it."""
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": density, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.loaded = False
        self.errors.clear()
        self.requests.clear()
        self.send("Page.navigate", url=file.as_uri())
        while not self.loaded:
            self._told(json.loads(self.socket.recv(timeout=30)))

    def js(self, expression: str):
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]["exception"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A click with the mouse in the middle of an element."""
        box = self.js(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            mouse = {"type": kind, "x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", **mouse)

    def key(self, name: str, text: str = "") -> None:
        """A key, pressed and let go."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39}
        keys = {"key": name, "windowsVirtualKeyCode": code.get(name, ord(name[0].upper()))}
        self.send("Input.dispatchKeyEvent", type="keyDown", **keys, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **keys)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.send("Input.insertText", text=text)


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with one tab; skips where there is none, or none that starts."""
    client = pytest.importorskip("websockets.sync.client", reason="needs websockets, of the dev extra")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium here: the viewer is not tried in a browser (apt-get install chromium)")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    running = subprocess.Popen([program, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(profile / "DevToolsActivePort", running)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            tab = next(tab for tab in json.load(answer) if tab["type"] == "page")
        with client.connect(tab["webSocketDebuggerUrl"], max_size=None, open_timeout=30) as socket:
            yield Page(socket)
    finally:
        running.terminate()
        running.wait(timeout=30)


def _port(file: Path, running: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        if file.exists() and (text := file.read_text()).count("\n"):
            return text.splitlines()[0]
        if running.poll() is not None:
            break
        time.sleep(0.05)
    pytest.skip("Chromium does not start here: the viewer is not tried in a browser")
