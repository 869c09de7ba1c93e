"""The page about following a server runs as printed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import ROOT
from page_blocks import Block, blocks, run_session

PAGE = ROOT / "docs" / "guide" / "follow.md"

pytestmark = [pytest.mark.redis, pytest.mark.slow]


def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        pytest.skip("redis-server and redis-cli are not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sessions = [block for block in blocks(PAGE) if block.text.startswith("$ ")]
    try:
        for block in sessions:
            here = block.text.replace("/tmp/redis.sock", f"{tmp_path}/redis.sock")
            run_session(Block(block.line, block.language, here, None), f"{PAGE.name}, {block.line}")
    finally:
        shut_down(tmp_path / "redis.sock")
    assert len(sessions) == 2


def shut_down(path: Path) -> None:
    """End the server, if the page did not."""
    import redis

    server = redis.Redis(unix_socket_path=str(path))
    try:
        server.shutdown(nosave=True)
    except redis.ConnectionError:
        pass
    finally:
        server.close()
