"""The pages about following a server run as printed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import ROOT
from page_blocks import Block, blocks, run_session

DOCS = ROOT / "docs"

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.mark.parametrize(("page", "count"), [("guide/follow.md", 2), ("operate/replicas.md", 1)])
def test_the_page_runs_as_printed(
    page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        pytest.skip("redis-server and redis-cli are not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sessions = [block for block in blocks(DOCS / page) if block.text.startswith("$ ")]
    try:
        for block in sessions:
            here = block.text.replace("/tmp/", f"{tmp_path}/")
            run_session(Block(block.line, block.language, here, None), f"{page}, {block.line}")
    finally:
        for name in ("redis.sock", "copy.sock"):
            shut_down(tmp_path / name)
    assert len(sessions) == count


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
