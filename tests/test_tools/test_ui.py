"""ui: what it refuses, and that it serves until a signal comes."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from cli_runner import run, start
from patience import PATIENCE_S, line_of

pytest.importorskip("uvicorn", reason="the extra `server` is not installed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with streamkeep.open(tmp_path / "s.store") as store:
        store.xadd("k", {"n": 1})
    return tmp_path / "s.store"


def test_what_is_wrong_is_named(path: Path, tmp_path: Path) -> None:
    assert "HOST:PORT" in run("ui", path, "--bind", "x:y", status=1).stderr
    assert "in the clear" in run("ui", path, "--bind", "0.0.0.0:0", status=1).stderr
    assert "together" in run("ui", path, "--tls-cert", "x", status=2).stderr
    run("ui", tmp_path / "none", status=6)
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough")
    token.chmod(0o644)
    assert "chmod 600" in run("ui", path, "--token-file", token, status=1).stderr
    token.chmod(0o600)
    for wrong in (b"short", b"a-token-that-is-not-text\xff"):
        token.write_bytes(wrong)
        assert "16 printable characters" in run("ui", path, "--token-file", token, status=1).stderr


def test_an_address_in_use_is_named(path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        said = run("ui", path, "--bind", bind, status=3).stderr
    assert bind in said
    assert "0 for any that is free" in said


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(path: Path, stop: signal.Signals) -> None:
    process = start("ui", str(path), "--bind", "127.0.0.1:0", "--json")
    try:
        told: dict[str, Any] = json.loads(line_of(process))
        base, _, token = told["url"].partition("/page/#token=")
        request = urllib.request.Request(f"{base}/streams/k")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            assert len(json.load(reply)["entries"]) == 1
        events = urllib.request.Request(f"{base}/streams/k?after=0")
        events.add_header("Authorization", f"Bearer {token}")
        events.add_header("Accept", "text/event-stream")
        reader = urllib.request.urlopen(events, timeout=PATIENCE_S)
        assert reader.readline() == b"retry: 1000\n"
        process.send_signal(stop)  # with a stream that would never end
        rest, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert json.loads(rest.splitlines()[-1])["stopped"] is True
    assert reader.read().startswith(b"id: 0-0")
