"""Followers that are killed every second, while a server runs commands as fast as it can."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cli_runner import start
from patience import PATIENCE_S
from real_redis.server import RealRedis, running_redis
from streamkeep.format.redis.resp import encode_command
from test_replication.test_follow import AT_ONCE, check_same, command, following_of, history, source
from tiers import daily_or_all

pytestmark = pytest.mark.redis

COMMANDS = daily_or_all(40_000, 1_000_000)
TRIMMED = (b"a", b"b")
KEPT = {**AT_ONCE, "repl-backlog-size": "1gb", "repl-ping-replica-period": "3600"}


@pytest.mark.parametrize("verb", ["follow", "serve"])
def test_a_follower_that_is_killed_every_second_gets_all_that_was_ever_added(
    verb: str, tmp_path: Path
) -> None:
    """A server goes on with what it followed when it was killed, without being told again."""
    store = tmp_path / "s"
    with running_redis(KEPT) as server:
        server.call(b"CONFIG", b"SET", b"stream-node-max-entries", 20)
        words = [verb, str(store)]
        if verb == "follow":
            words[1:1] = [source(server)]
        else:
            words += ["--socket", str(tmp_path / "u")]
        first = [] if verb == "follow" else ["--replicaof", source(server)]
        worker = quiet(*words, *first)
        load = threading.Thread(target=send, args=(server, random.Random(verb)))
        try:
            end = time.monotonic() + PATIENCE_S
            while not (following_of(store) and following_of(store).full):
                assert time.monotonic() < end
                time.sleep(0.1)
            load.start()
            kills = 0
            end = time.monotonic() + PATIENCE_S + COMMANDS / 500
            while not has_all_after_a_second(worker, server, load):
                assert time.monotonic() < end, kills
                worker.kill()
                worker.wait()
                kills += 1
                worker = quiet(*words)
        finally:
            worker.kill()
            worker.wait()
        print(f"{kills} kills, {following_of(store)}")
        assert following_of(store).full == 1
        check_same(server, store, (b"a", b"b", b"s", b"t", b"u"))
        added = [b"%d-1" % number for number in range(1, COMMANDS // 4 + 1)]
        for key in TRIMMED:
            assert history(store, key.decode()) == added


def quiet(*words: str) -> subprocess.Popen[bytes]:
    return start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def has_all_after_a_second(
    worker: subprocess.Popen[bytes], server: RealRedis, load: threading.Thread
) -> bool:
    """Return whether the store has all, when its process has used a second of a processor.

    A second of the clock may be too short to begin, on a machine that does other things, too.
    """
    busy = 0
    while busy < os.sysconf("SC_CLK_TCK"):
        sent = not load.is_alive()  # before the command that WAIT is about: its client wrote that
        server.call(b"SET", b"end", b"1")
        if server.call(b"WAIT", 1, 100) == 1 and sent:
            return True
        stat = Path(f"/proc/{worker.pid}/stat").read_text()
        busy = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return False


def send(server: RealRedis, chance: random.Random) -> None:
    """Send commands without waiting for replies: half of them add entries and trim others."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(server.socket))
        drain = threading.Thread(target=receive, args=(peer,))
        drain.start()
        for number in range(1, COMMANDS // 4 + 1):
            adds = (("XADD", key, "MAXLEN", "~", 50, f"{number}-1", "n", number) for key in TRIMMED)
            peer.sendall(b"".join(encode_command(*words) for words in (*adds, *two(chance))))
        peer.shutdown(socket.SHUT_WR)
        drain.join()


def two(chance: random.Random) -> list[list[Any]]:
    return [command(chance), command(chance)]


def receive(peer: socket.socket) -> None:
    while peer.recv(1 << 20):
        pass
