"""A headless Chromium, driven by its DevTools protocol. Nothing leaves this machine."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest

from patience import PATIENCE_S

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def find() -> str:
    """Return the path of the browser, or skip the test."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium")
    return found


class Browser:
    """One page of a headless browser.

    Attributes:
        complaints: what the page wrote to the console as errors, and exceptions that it threw,
            except what is expected.
        expected: parts of complaints that the test provokes. They come at any time, so a test must
            not wait for them and forget them.
        requests: the URLs that it asked for.
        clicks: how often `click` was called.
    """

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        websockets = pytest.importorskip("websockets.sync.client")
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        self._process = subprocess.Popen(
            [
                find(),
                "--headless=new",
                "--no-sandbox",  # root has none, in containers
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-extensions",
                "--no-first-run",
                "--hide-scrollbars",
                f"--user-data-dir={self._folder}",
                "--remote-debugging-port=0",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.complaints: list[str] = []
        self.expected: list[str] = []
        self.requests: list[str] = []
        self.clicks = 0
        self._number = 0
        port, path = self._endpoint()
        url = f"ws://127.0.0.1:{port}{path}"
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(
            websockets.connect(url, max_size=None, open_timeout=PATIENCE_S, compression=None)
        )
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def _endpoint(self) -> tuple[str, str]:
        place = Path(self._folder, "DevToolsActivePort")
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "the browser has ended"
            lines = place.read_text().split() if place.exists() else []
            if len(lines) == 2:
                return lines[0], lines[1]
            time.sleep(0.01)
        raise AssertionError("the browser did not start")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            reply = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return reply["result"]
            self._note(reply)

    def _note(self, event: dict[str, Any]) -> None:
        given = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            detail = given["exceptionDetails"]
            text = detail.get("exception", {}).get("description", detail["text"])
            self._complain(text)
        elif event.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self._complain(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])

    def _complain(self, text: str) -> None:
        if not any(one in text for one in self.expected):
            self.complaints.append(text)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )

    def dark(self, wanted: bool = True) -> None:
        value = "dark" if wanted else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, script: str, what: str = "") -> Any:
        """Wait until an expression is true; return its value."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.run(f"Boolean(document.body) && ({script})")) in (None, False, 0, ""):
            assert time.monotonic() < deadline, what or script
            time.sleep(0.02)
        return found

    def text(self, selector: str = "main") -> str:
        found: str = self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return found

    def click(self, words: str, selector: str = "button, a") -> None:
        """Click the first control with these words, by the mouse."""
        self.clicks += 1
        box = self.until(
            f"(() => {{ const one = [...document.querySelectorAll({json.dumps(selector)})]"
            f".find((one) => one.innerText.trim() === {json.dumps(words)} && !one.disabled"
            " && one.getClientRects().length);"
            " if (!one) return null; one.scrollIntoView({block: 'center'});"
            " const box = one.getBoundingClientRect();"
            " const at = [box.x + box.width / 2, box.y + box.height / 2];"
            " const stays = String(at) === window.clickedAt; window.clickedAt = String(at);"
            " return stays && at; })()",  # not while what is above is still being filled
            f"no control {words!r}",
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field, as a person would."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def names(self) -> list[tuple[str, str]]:
        """Return role and name of what a screen reader finds in the page."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node.get("role", {}).get("value", ""), node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored")
        ]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(data["data"]))
