"""`tail --follow`, and commands of `exec` that wait."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamkeep
from blocked import tickets
from cli_runner import lines, start
from patience import PATIENCE_S, line_of, wait_until
from streamkeep.engine.api.store import Store

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store `s` of an empty working directory."""
    monkeypatch.chdir(tmp_path)
    with streamkeep.open("s") as store:
        yield store


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


def test_xread_waits(store: Store) -> None:
    store.xadd("k", {"n": 1}, id="1-0")
    read = ("exec", "s", "XREAD", "BLOCK")
    assert lines(*read, "20", "STREAMS", "k", "$") == ["(nil)"]
    waiting = start(*read, "0", "STREAMS", "k", "$", "--json")
    wait_until(lambda: tickets(store) == 1)
    store.xadd("k", {"n": 2}, id="2-0")
    output, _ = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0
    assert json.loads(output.splitlines()[0])["reply"] == [["k", [["2-0", ["n", "2"]]]]]


def test_xreadgroup_waits_until_its_group_is_gone(store: Store) -> None:
    store.xadd("k", {"n": 1}, id="1-0")
    store.xgroup_create("k", "g")
    read = ("exec", "s", "XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "k", ">")
    waiting = start(*read)
    wait_until(lambda: tickets(store) == 1)
    store.xgroup_destroy("k", "g")
    _, errors = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 1
    assert errors.startswith(b"(error) NOGROUP")
