"""Clients of other languages: their sessions show the same as of Redis, and the guide's code runs.

STREAMKEEP_NODE_CLIENTS names a folder with `node_modules`, in which `make node-clients` has
installed node-redis and ioredis. Nothing is installed here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from patience import PATIENCE_S
from real_redis.commands import ALWAYS_A_CONSUMER
from real_redis.server import RealRedis, running_redis
from resp_peer import Peer, Running

ROOT = Path(__file__).resolve().parents[2]
SESSIONS = ROOT / "tests" / "clients"
# A start of node takes half a second.
pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture(scope="module")
def real() -> Iterator[RealRedis]:
    """A server to compare with."""
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def node() -> str:
    """The program node; the test is skipped without it."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("there is no node")
    return program


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder with node_modules; the test is skipped without it."""
    folder = Path(os.environ.get("STREAMKEEP_NODE_CLIENTS", ROOT / "build" / "node-clients"))
    if not (folder / "node_modules" / "ioredis").is_dir():
        pytest.skip("node-redis and ioredis are not installed; `make node-clients` installs them")
    return folder


def run(*words: str | Path) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("session", "protocol"), [("node_redis", "2"), ("node_redis", "3"), ("ioredis", "2")]
)
def test_a_session_shows_the_same_as_of_redis(
    real: RealRedis, running: Running, node: str, modules: Path, session: str, protocol: str
) -> None:
    real.call(b"FLUSHALL")
    theirs, ours = (
        run(node, SESSIONS / f"{session}.mjs", modules, path, protocol)
        for path in (str(real._connection.path), running.path)
    )
    if real.version < ALWAYS_A_CONSUMER:
        ours = ours.replace(',"inactive":"a time"', "")
    assert ours == theirs
    assert len(ours.splitlines()) > 20


def test_the_code_of_the_guide_runs(
    running: Running, node: str, modules: Path, tmp_path: Path
) -> None:
    with Peer(running.path) as peer:
        peer.call("XADD", "orders", "1-0", "sku", "7", "count", "2")
    folder = tmp_path / "guide"
    folder.mkdir()
    (folder / "orders.sock").symlink_to(running.path)
    (folder / "node_modules").symlink_to(modules / "node_modules")
    text = (ROOT / "docs" / "guide" / "clients.md").read_text()
    blocks = re.findall(r"```js\n(.*?)```\n```text\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    for number, (code, printed) in enumerate(blocks):
        (folder / f"{number}.mjs").write_text(code)
        done = subprocess.run(
            [node, f"{number}.mjs"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, printed), done.stderr
