"""Clients of other languages: their sessions show the same as of Redis, and the guide's code runs.

STREAMKEEP_NODE_CLIENTS names a folder with `node_modules`, in which `make node-clients` has
installed node-redis and ioredis. The clients of Go and redis_exporter are packages of Debian:
golang-go, golang-gopkg-redis.v5-dev, golang-github-gomodule-redigo-dev, prometheus-redis-exporter.
Nothing is installed here.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from patience import PATIENCE_S, wait_until
from real_redis.commands import ALWAYS_A_CONSUMER
from real_redis.server import RealRedis
from resp_peer import Peer, Running

ROOT = Path(__file__).resolve().parents[2]
SESSIONS = ROOT / "tests" / "clients"
# A start of node takes half a second.
pytestmark = [pytest.mark.redis, pytest.mark.slow]


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


@pytest.fixture(scope="module")
def go_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The session of the clients of Go, compiled; the test is skipped without them."""
    sources = Path("/usr/share/gocode/src")
    clients = [sources / "gopkg.in" / "redis.v5", sources / "github.com" / "gomodule" / "redigo"]
    if shutil.which("go") is None or not all(one.is_dir() for one in clients):
        pytest.skip("there is no Go, or no client of Redis for it")
    folder = tmp_path_factory.mktemp("go")
    environment = {"GO111MODULE": "off", "GOPATH": str(sources.parent), "GOCACHE": str(folder)}
    subprocess.run(
        ["go", "build", "-o", folder / "session", SESSIONS / "session.go"],
        env={**os.environ, **environment},
        check=True,
        timeout=10 * PATIENCE_S,
    )
    return folder / "session"


def test_a_session_in_go_shows_the_same_as_of_redis(
    real: RealRedis, running: Running, go_session: Path
) -> None:
    real.call(b"FLUSHALL")
    theirs, ours = (run(go_session, path) for path in (real._connection.path, running.path))
    assert ours == theirs
    assert len(ours.splitlines()) > 50


def test_redis_exporter_reads_all_that_it_asks_for(running: Running, free_port: int) -> None:
    names = ("redis_exporter", "prometheus-redis-exporter")
    program = next((one for one in names if shutil.which(one)), None)
    if program is None:
        pytest.skip("there is no redis_exporter")
    with Peer(running.path) as peer:
        peer.call("XGROUP", "CREATE", "orders", "mail", 0, "MKSTREAM")
        peer.call("XADD", "orders", "1-0", "sku", "7")
        peer.call("XREADGROUP", "GROUP", "mail", "ann", "STREAMS", "orders", ">")
    at = f"127.0.0.1:{free_port}"
    exporter = subprocess.Popen(
        [program, "--redis.addr", f"unix://{running.path}", "--check-streams", "orders",
         "--web.listen-address", at],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:

        def listens() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", free_port)):
                return True
            return False

        wait_until(listens)
        with urllib.request.urlopen(f"http://{at}/metrics", timeout=PATIENCE_S) as answer:
            found = answer.read().decode()
    finally:
        exporter.terminate()
        _, log = exporter.communicate(timeout=PATIENCE_S)
    of_group = '{db="db0",group="mail",stream="orders"}'
    for line in (
        "redis_up 1",
        'redis_exporter_last_scrape_error{err=""} 0',
        'redis_stream_length{db="db0",stream="orders"} 1',
        f"redis_stream_group_messages_pending{of_group} 1",
    ):
        assert line in found.splitlines()
    assert 'redis_commands_total{cmd="xadd"} 1' in found
    assert "level=error" not in log


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
