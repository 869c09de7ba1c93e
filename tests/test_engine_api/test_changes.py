"""The change feed: what commits have done, for readers that go on where they stopped."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from conftest import assert_sound
from crash.losses import small_journal
from inside import checkpoint_now, context_of, environment_of, flush_now, journal_of, wait_table_of
from patience import thread_of, wait_until
from replayed import Mutator, Replayed, state_of
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.blocking import waiters
from streamkeep.engine.feed import feed
from streamkeep.engine.feed.effects import Effect
from streamkeep.engine.feed.feed import Feed
from tiers import daily_or_all, slow_but

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_checkpoints() -> Iterator[None]:
    """No thread makes checkpoints: a feed goes back to the last one."""
    with small_journal():
        yield


def kinds(commits: Any) -> list[str]:
    return [effect.kind for commit in commits for effect in commit.effects]


def newest(store: Store[Any]) -> int:
    return state_of(store)[0]


@pytest.mark.parametrize("seed", slow_but(range(100), *range(4)))
def test_the_effects_give_the_store_at_each_commit(open_store: Open, seed: int) -> None:
    """From each commit since the checkpoint, a reader gets what followed, and nothing twice."""
    chance = random.Random(seed)
    store = open_store(sync="none", node_max_entries=chance.choice((3, 10, 100)))
    context_of(store).memtable.most_commits = chance.choice((10, 1000))
    mutator = Mutator(chance)
    for _ in range(50):
        mutator.change(store)
    checkpoint_now(store)
    first, state = state_of(store)
    states, replayed = {first: state}, Replayed(state_of(store)[1])
    beside = store.changes("$", block=None)
    for _ in range(150):
        mutator.change(store)
        number, state = state_of(store)
        states[number] = state
    commits = list(store.changes())
    assert [one.number for one in commits] == list(range(first + 1, newest(store) + 1))
    assert list(beside) == commits
    for commit in commits:
        for effect in commit.effects:
            replayed.apply(effect)
        if commit.number in states:
            assert replayed.streams == states[commit.number]
    assert list(store.changes(first)) == commits
    for at in chance.sample(range(len(commits)), 10):
        assert list(store.changes(commits[at].number)) == commits[at + 1 :]
        assert list(store.changes(commits[at].position)) == commits[at + 1 :]


def test_names_that_change_places(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.xadd(name, {"was": name}, id="1-1")
    _, state = state_of(store)
    commits = store.changes("$")
    with store.transaction() as txn:  # a -> b -> c -> a
        for old, new in (("c", "d"), ("b", "c"), ("a", "b"), ("d", "a")):
            txn.rename(old, new)
    replayed = Replayed(state)
    found = list(commits)
    for effect in found[0].effects:
        replayed.apply(effect)
    assert set(kinds(found)) == {"stream_renamed"}
    assert replayed.streams == state_of(store)[1]


def test_an_id_that_is_given_again(store: Store) -> None:
    store.xadd("a", {"n": "1"}, id="1-1")
    store.xadd("a", {"n": "2"}, id="2-1")
    commits = store.changes("$")
    with store.transaction() as txn:
        txn.xtrim("a", maxlen=0, approximate=False)
        txn.xsetid("a", "1-1", entries_added=1)
        txn.xadd("a", {"n": "other"}, id="2-1")
    (commit,) = commits
    assert commit.effects == (
        Effect("deleted", b"a", (b"2-1",)),
        Effect("added", b"a", (b"2-1",), {b"n": b"other"}),
        Effect("id_set", b"a", (b"2-1",), number=2),
        Effect("trimmed", b"a", (b"1-1",), number=1),
    )


def test_what_cannot_be_gone_on_with(store: Store) -> None:
    """The error has both numbers, and what to do; nothing is left out silently."""
    store.xadd("a", {"n": "1"})
    seen = newest(store)
    store.xadd("a", {"n": "2"})
    (last,) = store.changes(seen)
    checkpoint_now(store)
    assert list(store.changes(last.position)) == []
    both = rf"commit {seen} are gone .* {seen + 1}"
    with pytest.raises(streamkeep.ChangesGoneError, match=both) as gone:
        store.changes(seen)
    assert (gone.value.wanted, gone.value.oldest) == (seen, seen + 1)
    assert "streamkeep changes TARGET" in str(gone.value)
    with pytest.raises(streamkeep.ChangesGoneError, match=rf"no commit 999 .* is {seen + 1}"):
        store.changes(999)
    number, _, chain = last.position.partition("-")
    with pytest.raises(streamkeep.ChangesGoneError, match="another one"):
        store.changes(f"{number}-{int(chain, 16) ^ 1:016x}")
    for wrong in (-1, True, "", "x", "1-2", "1-", 1.5, "\u0661"):
        with pytest.raises(streamkeep.ArgumentError, match="from_commit"):
            store.changes(wrong)  # type: ignore[arg-type]  # on purpose


def test_a_slow_reader_holds_the_journal(store: Store, tmp_path: Path) -> None:
    """Checkpoints retire what it does not need; what it needs stays, until it ends."""
    journal = journal_of(store).folder
    commits = store.changes("$")
    first = newest(store)
    for n in range(300):
        store.xadd("a", {"n": str(n), "pad": "x" * 500})
        if n % 30 == 0:
            checkpoint_now(store)
    files = len(journal.names())
    assert [next(commits).number for _ in range(200)] == list(range(first + 1, first + 201))
    assert sum(name.startswith("slot-") for name in journal.names()) == 1
    assert list(environment_of(store).slots()) == [], "it is no copy"
    assert not store.durability().copies
    assert len(list(commits)) == 100
    assert not [name for name in journal.names() if name.startswith("slot-")]
    checkpoint_now(store)
    assert len(journal.names()) < files


@pytest.mark.parametrize("forks", [False, True])
def test_a_killed_reader_holds_nothing(store: Store, *, forks: bool) -> None:
    """Nor does a child that it has forked, and that lives on."""
    store.xadd("a", {"n": "1"})
    reads = "import os, sys, time, streamkeep; s = streamkeep.open(sys.argv[1], readonly=True); "
    reads += "changes = s.changes('$', block=0); child = os.fork() if FORKS else 1; "
    # The child says its number, when it has left to its parent what it has from it.
    reads += "print(child or os.getpid(), flush=True) if child in (0, 1) else None; "
    reads += "child or time.sleep(60); next(changes)"
    reads = reads.replace("FORKS", str(forks))
    with subprocess.Popen(
        [sys.executable, "-c", reads, str(store.path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        checkpoint_now(store)
        assert any(name.startswith("slot-") for name in journal_of(store).folder.names())
        process.kill()
    try:
        store.xadd("a", {"n": "2"})
        checkpoint_now(store)
        assert not any(name.startswith("slot-") for name in journal_of(store).folder.names())
    finally:
        if forks:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_leaves_the_journal_to_its_parent(store: Store) -> None:
    store.xadd("a", {"n": "1"})
    commits = store.changes("$")
    child = os.fork()
    if child == 0:
        del commits
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert any(name.startswith("slot-") for name in journal_of(store).folder.names())
    checkpoint_now(store)
    assert any(name.startswith("slot-") for name in journal_of(store).folder.names())
    assert list(commits) == []


def test_a_reader_whose_journal_was_retired(store: Store) -> None:
    """Past its bound the journal is retired all the same: an error, and not a gap."""
    reader = Feed(environment_of(store), "$", None, bytes, decode=False, hold_bytes=1)
    first = newest(store)
    for n in range(200):
        store.xadd("a", {"n": str(n), "pad": "x" * 500})
    flush_now(store)
    checkpoint_now(store)
    for n in range(200):
        store.xadd("a", {"n": str(n), "pad": "x" * 500})
        checkpoint_now(store)
    numbers: list[int] = []
    with pytest.raises(streamkeep.ChangesGoneError) as gone:
        while True:
            numbers += [one.number for one in reader.take([]) or []]
    reader.close()
    assert numbers == list(range(first + 1, first + 1 + len(numbers)))
    assert (gone.value.wanted, gone.value.oldest) == (first + len(numbers), newest(store))


def test_erased_entries_are_not_in_the_feed(store: Store) -> None:
    """After an erasure no reader gets them; one that is at work, and behind, reads on."""
    store.xadd("a", {"secret": "the code word"}, id="1-1")
    store.xadd("a", {"n": "2"}, id="2-1")
    seen = newest(store)
    got: list[Any] = []
    stop = threading.Event()

    def follow() -> None:
        for commit in store.changes("$", block=0, stop=stop.is_set):
            got.append(commit)
            time.sleep(0.5)  # so it is still at the one before when the entry is erased

    reader = thread_of(follow)
    wait_until(lambda: wait_table_of(store).has_followers())
    store.xadd("a", {"n": "3"}, id="3-1")
    wait_until(lambda: bool(got))
    assert store.erase("a", "1-1") == 1
    stop.set()
    reader.join()
    assert "deleted" in kinds(got)
    assert b"the code word" not in repr(got).encode() + repr(list(store.changes())).encode()
    with pytest.raises(streamkeep.ChangesGoneError):
        store.changes(seen)


def test_every_commit_wakes_a_reader(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that wakes no blocked XREAD; polling alone would take ten minutes."""
    monkeypatch.setattr(feed, "_FRESH_MS", 600_000)
    monkeypatch.setattr(waiters, "FALLBACK_S", 600.0)
    store = open_store()
    store.xadd("a", {"n": "1"}, id="1-1")
    store.xgroup_create("a", "g", "0")
    store.xreadgroup("g", "c", {"a": ">"})
    commits = store.changes("$", block=0)

    def acknowledge() -> None:
        wait_until(lambda: wait_table_of(store).has_followers())
        store.xack("a", "g", "1-1")

    done = thread_of(acknowledge)
    assert kinds([next(commits)]) == ["acknowledged"]
    done.join()
    commits.close()  # type: ignore[attr-defined]  # a generator


def test_a_reader_that_waits_for_some_time(store: Store) -> None:
    assert list(store.changes("$", block=1)) == []
    assert list(store.changes("$", block=0, stop=lambda: True)) == []


def test_text_and_asyncio(open_store: Open) -> None:
    store = open_store(decode_responses=True)
    commits = store.changes("$")
    store.xadd("ä", {"n": "ö"}, id="1-1")
    (commit,) = commits
    assert commit.effects == (
        Effect("stream_created", "ä"),
        Effect("added", "ä", ("1-1",), {"n": "ö"}),
    )
    assert commit.effects[1].pairs == [("n", "ö")]
    assert commit.effects[0].pairs == []

    async def follow() -> list[str]:
        async with await streamkeep.aio.open(store.path) as twin:
            found = twin.changes("$", block=0)
            await twin.xadd("a", {"n": "1"})
            async for one in found:
                await found.aclose()  # type: ignore[attr-defined]  # a generator
                return kinds([one])
        return []

    assert asyncio.run(follow()) == ["stream_created", "added"]


def test_a_store_that_reads_what_is_on_disk(open_store: Open) -> None:
    store = open_store(sync="none", read_durable=True)
    commits = store.changes("$")
    store.xadd("a", {"n": "1"})
    (commit,) = commits
    assert (store.durability().durable_commit or 0) >= commit.number


@pytest.mark.parametrize("seed", slow_but(range(30), 0))
def test_readers_of_processes_that_are_killed(path: Path, seed: int) -> None:
    """Two write and are killed; readers go on where others stopped. The state is the store's."""
    chance = random.Random(seed)
    with streamkeep.open(path) as store:
        store.xadd("a", {"n": "1"})
    writers: list[subprocess.Popen[bytes]] = []

    def write() -> None:
        worker = str(ROOT / "tests" / "changes_worker.py")
        words = [sys.executable, worker, str(path), str(chance.randrange(1 << 30))]
        one = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert one.stdout is not None
        one.stdout.readline()
        writers.append(one)

    with streamkeep.open(path, readonly=True) as reader:
        position: str | None = None
        replayed = Replayed()
        number = full = 0
        write()
        write()
        for _ in range(daily_or_all(2, 3)):
            try:
                commits = reader.changes(position, block=1)
            except streamkeep.ChangesGoneError:
                position = None
                commits = reader.changes("$", block=1)
            if position is None:  # begin with a full read, of a later commit than the feed
                number, state = state_of(reader)
                replayed, full = Replayed(state), full + 1
            for commit in commits:
                if commit.number <= number:
                    continue
                assert commit.number == number + 1
                number, position = commit.number, commit.position
                for effect in commit.effects:
                    replayed.apply(effect)
                if chance.random() < 0.005:
                    break
            commits.close()  # type: ignore[attr-defined]  # a generator
            victim = writers.pop(chance.randrange(2))
            victim.kill()
            victim.communicate()
            write()
        for one in writers:
            one.kill()
            one.communicate()
        last, state = state_of(reader)
        if number < last:  # otherwise a reader has all of it
            try:
                rest = list(reader.changes(position or number))
            except streamkeep.ChangesGoneError:
                rest = []  # a checkpoint came at the end
            for commit in rest:
                assert commit.number == number + 1
                number = commit.number
                for effect in commit.effects:
                    replayed.apply(effect)
        assert replayed.streams == state or number < last
    with streamkeep.open(path):
        pass
    assert_sound(path)
