"""Append-only files of a real server: loaded here they give what the server itself loads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from cli_runner import run
from patience import wait_until
from real_redis.mixed import KEYS, random_command
from real_redis.server import RealRedis, running_redis
from real_redis.shown import TIMES, caller, stream
from streamkeep import recovery
from tiers import slow_but

COMMANDS = 400


def begin_appending(server: RealRedis) -> Path:
    """Have a server write an append-only file; return its folder."""
    call: Any = server.call
    call(b"CONFIG", b"SET", b"aof-use-rdb-preamble", b"no")
    call(b"CONFIG", b"SET", b"appendfsync", b"always")
    call(b"CONFIG", b"SET", b"appendonly", b"yes")
    folder = Path(call(b"CONFIG", b"GET", b"dir")[1].decode()) / "appendonlydir"
    wait_until(
        lambda: (
            b"aof_rewrite_in_progress:1" not in call(b"INFO", b"persistence")
            and list(folder.glob("*.manifest"))
        )
    )
    return folder


@pytest.mark.parametrize("seed", slow_but(range(8), 0, 3, 6))
def test_what_a_server_wrote_is_loaded_as_the_server_loads_it(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chance = random.Random(seed)
    with running_redis({"enable-debug-command": "yes"}) as server:
        folder = begin_appending(server)
        call: Any = server.call
        call(b"CONFIG", b"SET", b"stream-node-max-entries", 5)
        for _ in range(COMMANDS):
            if chance.random() < 0.1:
                call("MULTI")
                for _ in range(3):
                    call(*random_command(chance))
                call("EXEC")
            else:
                call(*random_command(chance))
        (file,) = folder.glob("*.incr.aof")
        run("load", "s", file)
        assert call("DEBUG", "LOADAOF") == b"OK"
        there = [key for key in KEYS if call("TYPE", key) == b"stream"]
        with streamkeep.open("s", readonly=True) as store:
            assert store.keys() == there
            for key in there:
                ours, theirs = (stream(at, key, b"lag", *TIMES) for at in (caller(store), call))
                assert ours == theirs
    assert [str(found) for found in recovery.check(Path("s"))] == []
