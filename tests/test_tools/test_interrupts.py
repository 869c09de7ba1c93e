"""load and Ctrl-C; commands that follow a stream or wait for an entry."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from blocked import tickets
from cli_runner import lines, reply, run, start
from patience import PATIENCE_S, line_of, wait_until
from streamkeep.engine.api.store import Store
from streamkeep.transfer.loading.staged import Load
from streamkeep.transfer.stores import uninterrupted

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come

LINES = "".join(f'{{"n":{number}}}\n' for number in range(1, 11))


def interrupt_behind(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Send Ctrl-C when a method has committed, before its caller can count."""
    original = getattr(owner, name)
    calls = 0

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        result = original(*args, **options)
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, name, interrupted)


def interrupt_commit(monkeypatch: pytest.MonkeyPatch, call: int, moment: str) -> None:
    """Send Ctrl-C within a transaction, or when it has committed, before its caller can count."""
    original = streamkeep.Store.transaction
    calls = 0

    @contextmanager
    def interrupted(store: Any, *args: Any) -> Iterator[Any]:
        nonlocal calls
        with original(store, *args) as transaction:
            yield transaction
            calls += 1
            if calls == call and moment == "within":
                signal.raise_signal(signal.SIGINT)
        if calls == call and moment == "after":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(streamkeep.Store, "transaction", interrupted)


def test_rows_that_are_committed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.jsonl").write_text(LINES)
    with monkeypatch.context() as patched:
        interrupt_commit(patched, 2, "after")
        told = run("load", "s", "k", "a.jsonl", "--batch", "3", status=1).stderr
    assert "a.jsonl: interrupted; 6 entries stored, up to line 6; --from-line 7 continues" in told
    assert reply("s", "XLEN", "k") == 6
    run("load", "s", "k", "a.jsonl", "--from-line", "7")
    assert reply("s", "XLEN", "k") == 10


@pytest.mark.parametrize("moment", ["within", "after"])
def test_commands_that_are_committed_are_counted(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    Path("a.resp").write_text("".join(f"XADD k {number}-0 a b\r\n" for number in range(1, 2501)))
    with monkeypatch.context() as patched:
        interrupt_commit(patched, 2, moment)
        told = run("load", "s", "a.resp", status=1).stderr
    assert "a.resp: interrupted; 2,000 commands applied; --from-line 2001" in told
    assert reply("s", "XLEN", "k") == 2000
    run("load", "s", "a.resp", "--from-line", "2001")
    assert reply("s", "XLEN", "k") == 2500


def test_streams_that_are_published_are_not_called_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with streamkeep.open("s") as store:
        store.xadd("k", {"a": "b"})
    run("dump", "s", "--output", "a.jsonl")
    with monkeypatch.context() as patched:
        interrupt_behind(patched, Load, "publish", 1)
        told = run("load", "copy", "a.jsonl", status=1).stderr
    assert "a.jsonl: interrupted; all was loaded" in told
    assert reply("copy", "XLEN", "k") == 1


def test_a_signal_that_is_ignored_stays_so() -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a job that a shell began with &
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)


# --- `tail --follow`, and commands of `exec` that wait --------------------------------------------


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkeep.open("s") as store:
        yield store


def interrupt(process: subprocess.Popen[bytes]) -> None:
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


def test_tail_follows_the_history_of_a_stream_past_what_is_trimmed_at_once(store: Store) -> None:
    store.set_retention("k", archive=True, maxlen=2)
    store.xadd("k", {"n": 0}, id="1-0")
    tail = start("tail", "s", "k", "--history", "--follow")
    assert line_of(tail) == b"1-0  n=0\n"
    wait_until(lambda: tickets(store) == 1)
    store.xadd_many("k", [{"n": n} for n in range(9)], ids=[f"{n}-0" for n in range(2, 11)])
    assert [line_of(tail) for _ in range(9)] == [b"%d-0  n=%d\n" % (n + 2, n) for n in range(9)]
    wait_until(lambda: tickets(store) == 1)
    interrupt(tail)


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
