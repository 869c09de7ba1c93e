"""The example examples/integrations/answers.py, in a real browser that reloads in the middle."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra `asgi` is not installed")

import uvicorn

import streamkeep.aio
from browser import Browser
from conftest import ROOT, assert_sound, module_at
from patience import wait_until


class Serving:
    """The example on a port of this machine, until the block ends."""

    def __init__(self, path: Path, example: ModuleType, pause_s: float) -> None:
        self._path = path
        self._example = example
        self._pause_s = pause_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._server: Any = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        async with await streamkeep.aio.open(self._path) as store:
            app = self._example.create_app(store, self._pause_s)
            config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=0)
            self._server = uvicorn.Server(config)
            self._server.install_signal_handlers = lambda: None
            await self._server.serve(sockets=[self._listening])

    def __enter__(self) -> Serving:
        self._thread.start()
        wait_until(lambda: self._server.started if self._server else not self._thread.is_alive())
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()


@pytest.mark.slow
def test_an_answer_is_whole_in_a_browser_that_reloads_in_the_middle(tmp_path: Path) -> None:
    example = module_at(ROOT / "examples/integrations/answers.py")
    text = " ".join((example.TEXT * 3).split())
    with Serving(tmp_path / "s", example, 0.05) as serving, Browser() as browser:
        request = urllib.request.Request(f"{serving.url}/answers/one", method="POST")
        with urllib.request.urlopen(request) as reply:
            assert reply.status == 202
        browser.open(f"{serving.url}/answers/one")
        for words in (5, 15):
            browser.until(
                f"document.querySelector('#answer')?.innerText.split(' ').length > {words}"
            )
            assert not browser.run("document.body.dataset.ended")
            browser.call("Page.reload")
        browser.until("document.body.dataset.ended")
        assert browser.text("#answer").strip() == text
        assert browser.complaints == []
    with Serving(tmp_path / "s", example, 0.05) as serving, Browser() as browser:
        browser.open(f"{serving.url}/answers/one")  # after a restart of the server
        browser.until("document.body.dataset.ended")
        assert browser.text("#answer").strip() == text
    assert_sound(tmp_path / "s")
