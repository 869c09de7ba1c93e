"""`tail --follow` and `read --block`."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamkeep
from blocked import tickets
from cli_runner import lines, objects, run, start
from patience import PATIENCE_S, wait_until
from streamkeep.engine.api.store import Store

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store `s` of an empty working directory."""
    monkeypatch.chdir(tmp_path)
    with streamkeep.open("s") as store:
        yield store


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C."""
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, errors.split()) == (1, b"", [b"Aborted!"])


def test_tail_follows_a_stream(store: Store) -> None:
    store.xadd_many("k", [{"n": n} for n in range(3)], ids=["1-0", "2-0", "3-0"])
    tail = start("tail", "s", "k", "-n", "2", "--follow")
    assert [line_of(tail), line_of(tail)] == [b"2-0  n=1\n", b"3-0  n=2\n"]
    wait_until(lambda: tickets(store) == 1)
    store.xadd("k", [("f", "1"), ("f", "2")], id="4-0")
    assert line_of(tail) == b"4-0  f=1 f=2\n"
    wait_until(lambda: tickets(store) == 1)
    store.xadd_many("k", [{"n": n} for n in range(2)], ids=["5-0", "6-0"])
    assert [line_of(tail), line_of(tail)] == [b"5-0  n=0\n", b"6-0  n=1\n"]
    wait_until(lambda: tickets(store) == 1)
    interrupt(tail)
    assert tickets(store) == 0


def test_tail_follows_a_stream_that_does_not_exist_yet(store: Store) -> None:
    tail = start("tail", "s", "k", "--follow", "--json")
    wait_until(lambda: tickets(store) == 1)
    store.xadd("k", {"f": "v"}, id="1-0")
    assert json.loads(line_of(tail))["id"] == "1-0"
    tail.kill()
    tail.communicate()


def test_read_blocks(store: Store) -> None:
    store.xadd("k", {"n": 1}, id="1-0")
    assert lines("read", "s", "k", "--block", "0") == ["1-0  n=1"]
    assert lines("read", "s", "k", "--id", "$", "--block", "20ms") == []
    assert objects("read", "s", "k", "--id", "1-0", "--block", "20ms")[0]["entries"] == 0
    read = start("read", "s", "k", "--id", "$", "--block", "0")
    wait_until(lambda: tickets(store) == 1)
    store.xadd("k", {"n": 2}, id="2-0")
    output, _ = read.communicate(timeout=PATIENCE_S)
    assert (read.returncode, output) == (0, b"2-0  n=2\n")
    read = start("read", "s", "k", "--id", "$", "--block", "0")
    wait_until(lambda: tickets(store) == 1)
    interrupt(read)


def test_read_blocks_as_a_consumer(store: Store) -> None:
    store.xadd("k", {"n": 1}, id="1-0")
    store.xgroup_create("k", "g", id=0)
    worker = ("read", "s", "k", "--group", "g", "--consumer", "c", "--sync", "none", "--block")
    assert lines(*worker, "0") == ["1-0  n=1"]
    assert lines(*worker, "20ms") == []
    read = start(*worker, "0")
    wait_until(lambda: tickets(store) == 1)
    store.xadd("k", [("f", "1"), ("f", "2")], id="2-0")
    output, _ = read.communicate(timeout=PATIENCE_S)
    assert (read.returncode, output) == (0, b"2-0  f=1 f=2\n")
    assert store.xpending("k", "g")["pending"] == 2
    read = start(*worker, "0")
    wait_until(lambda: tickets(store) == 1)
    store.xgroup_destroy("k", "g")
    _, errors = read.communicate(timeout=PATIENCE_S)
    assert read.returncode == 6
    assert errors.startswith(b"streamkeep read: NOGROUP")


def test_a_wait_must_not_be_negative(store: Store) -> None:
    assert "--block" in run("read", "s", "k", "--block", "-1", status=2).stderr
