"""`streamkeep follow` against a real server: the same streams, and the history of all."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from cli_runner import objects, run
from cli_runner import start as start_cli
from conftest import ROOT
from patience import beside, line_of, wait_until
from real_redis.mixed import KEYS, random_command
from real_redis.server import RealRedis, running_redis
from real_redis.shown import TIMES, caller, stream
from resp_peer import Peer
from streamkeep import ArgumentError, NotAStoreError, StoreError, StoreLockedError, recovery
from streamkeep.replication import Follower, FollowError, LinkLost, RefusedError, detach, following
from streamkeep.replication.synchronize import Synchronization
from test_server.conftest import served
from tiers import daily_or_all, slow_but

pytestmark = pytest.mark.redis

AT_ONCE = {"repl-diskless-sync-delay": "0"}


@pytest.fixture
def server() -> Iterator[RealRedis]:
    with running_redis(AT_ONCE) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s"


def source(server: RealRedis) -> str:
    return f"unix://{server.socket}"


def once(server: RealRedis, store: Path, **settings: Any) -> Any:
    """Bring a store up to what the server has now."""
    return Follower(source(server), store, **settings).run(once=True)


@contextmanager
def followed(server: RealRedis, store: Path, **settings: Any) -> Iterator[Follower]:
    """Follow a server in a thread, until the block ends."""
    follower = Follower(source(server), store, **settings)
    with beside(follower.run, stop=follower.stop.set):
        yield follower


def check_same(server: RealRedis, store: Path, keys: tuple[bytes, ...] = KEYS) -> None:
    there = [key for key in keys if server.call("TYPE", key) == b"stream"]
    with streamkeep.open(store) as opened:  # after a kill it is recovered
        assert opened.keys() == there
        for key in there:
            # Replicas of Redis itself do not have how much was read either, nor idle consumers.
            ours, theirs = (
                stream(at, key, b"lag", b"entries-read", *TIMES)
                for at in (caller(opened), server.call)
            )
            for group in (*ours[b"groups"], *theirs[b"groups"]):
                group[b"consumers"] = [one for one in group[b"consumers"] if one[b"pending"]]
            assert ours == theirs
    assert [str(found) for found in recovery.check(store)] == []


def caught_up(server: RealRedis, store: Path) -> None:
    wait_until(lambda: server.call("WAIT", 1, 1000) == 1)
    # WAIT is about commands, not about the file, which is all there is before the first of them.
    wait_until(lambda: following_of(store))


def history(store: Path, key: str) -> list[bytes]:
    with streamkeep.open(store, readonly=True) as opened:
        return [entry.id for entry in opened.scan(key, history=True)]


def fill(server: RealRedis, key: str, count: int, *options: str) -> list[bytes]:
    return server.call_all([["XADD", key, *options, "*", "n", n] for n in range(count)])


def test_once_brings_a_store_up_to_the_server(server: RealRedis, store: Path) -> None:
    first = fill(server, "s", 300)
    server.call("XGROUP", "CREATE", "s", "g", "0")
    server.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", "s", ">")
    server.call("SET", "string", "x")
    report = once(server, store)
    assert (report.full, report.entries, report.commands) == (1, 300, 0)
    check_same(server, store)
    more = fill(server, "s", 200, "MAXLEN", "100")
    server.call("HSET", "hash", "f", "v")
    report = once(server, store)
    assert (report.full, report.entries) == (1, 500)
    assert report.skipped == {"command HSET": 1}
    check_same(server, store)
    assert history(store, "s") == first + more


@pytest.mark.parametrize("diskless", slow_but(["yes", "no"], "no"))
def test_files_come_with_and_without_their_size(tmp_path: Path, store: Path, diskless: str) -> None:
    with running_redis({**AT_ONCE, "repl-diskless-sync": diskless}) as server:
        fill(server, "s", 2000)
        once(server, store)
        check_same(server, store)


@pytest.mark.parametrize("seed", slow_but(range(12), 3))
def test_killed_followers_leave_nothing_out_and_apply_nothing_twice(
    seed: int, tmp_path: Path, store: Path
) -> None:
    chance = random.Random(seed)
    settings = {**AT_ONCE, "repl-backlog-size": chance.choice(["16kb", "4mb"])}
    deletions = chance.choice(["apply", "keep"])
    with running_redis(settings) as server:
        server.call(b"CONFIG", b"SET", b"stream-node-max-entries", 5)
        worker = start(server, store, deletions=deletions)
        end = time.monotonic() + daily_or_all(3, 20)
        next_kill = time.monotonic() + 2
        try:
            while time.monotonic() < end:
                batch = [command(chance) for _ in range(chance.randrange(1, 300))]
                if chance.random() < 0.2:
                    batch = [["MULTI"], *batch, ["EXEC"]]
                server.call_all(batch)
                if time.monotonic() > next_kill:
                    worker.kill()
                    worker.wait()
                    worker = start(server, store, deletions=deletions)
                    next_kill = time.monotonic() + chance.uniform(0.2, 4)
            caught_up(server, store)
        finally:
            worker.kill()
            worker.wait()
        check_same(server, store)


def command(chance: random.Random) -> list[Any]:
    """Return a random command; no read of the history, whose deliveries no replica is told."""
    while True:
        words = random_command(chance)
        if words[0] != "XREADGROUP" or words[-1] == ">":
            return words


def start(server: RealRedis, store: Path, **settings: Any) -> subprocess.Popen[bytes]:
    worker = ROOT / "tests" / "follower_worker.py"
    return subprocess.Popen(
        [sys.executable, worker, source(server), store, json.dumps(settings)],
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("deletions", slow_but(["apply", "keep"], "keep"))
def test_the_history_has_all_that_was_ever_added(
    deletions: str, tmp_path: Path, store: Path
) -> None:
    """Also what is trimmed while no follower runs, and the backlog still has it."""
    chance = random.Random(deletions)
    with running_redis({**AT_ONCE, "repl-backlog-size": "64mb"}) as server:
        server.call("CONFIG", "SET", "stream-node-max-entries", 7)
        once(server, store, deletions=deletions)
        added: dict[str, list[bytes]] = {"s": [], "t": [], "u": []}
        deleted = set()
        worker = start(server, store, deletions=deletions)
        try:
            for turn in range(daily_or_all(24, 600)):
                key = chance.choice("stu")
                limit = chance.choice([[], ["MAXLEN", "~", "40"], ["MAXLEN", "=", "9"]])
                added[key] += fill(server, key, chance.randrange(60), *limit)
                live = [entry[0] for entry in server.call("XRANGE", key, "-", "+")]
                for gone in chance.sample(live, min(len(live), 3)):
                    server.call("XDEL", key, gone)
                    deleted.add((key, gone))
                if turn % 12 == 11:
                    worker.kill()
                    worker.wait()
                    worker = start(server, store, deletions=deletions)
            caught_up(server, store)
        finally:
            worker.kill()
            worker.wait()
        check_same(server, store)
        for key, ids in added.items():
            kept = [one for one in ids if deletions == "keep" or (key, one) not in deleted]
            assert history(store, key) == kept


def test_what_was_missed_is_applied_as_a_difference(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also, and it is counted, by the next follower, if one was killed while it applied that."""
    with running_redis({**AT_ONCE, "repl-backlog-size": "16kb"}) as server:
        first = fill(server, "s", 50)
        fill(server, "t", 3)
        server.call("XGROUP", "CREATE", "s", "g", "0")
        once(server, store)
        with streamkeep.open(store) as opened:
            opened.xadd("own", {"a": "b"})
        server.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", ">")
        server.call("XGROUP", "CREATE", "s", "h", "$")
        server.call("XTRIM", "s", "MAXLEN", 20)
        server.call("DEL", "t")
        missed = fill(server, "s", 3000, "MAXLEN", "1500")
        fill(server, "u", 5, "MAXLEN", "2")
        with monkeypatch.context() as patch:
            patch.setattr(Synchronization, "_finish", Mock(side_effect=StoreError("as a kill")))
            with pytest.raises(StoreError, match="as a kill"):
                once(server, store)
        assert "all streams are to be taken anew" in run("status", store).stdout
        report = once(server, store)
        assert (report.full, report.lost) == (2, 1503)  # of `s`, and of `u`, which was new
        with streamkeep.open(store) as opened:
            assert opened.delete("own") == 1  # a stream of the store's own was left alone
        check_same(server, store)
        # What was added and trimmed meanwhile never came; all that had come is there.
        assert history(store, "s") == first + missed[-1500:]


def test_entries_that_went_before_they_came_are_told_and_counted(
    tmp_path: Path, store: Path
) -> None:
    told = "140 entries that Redis had trimmed or deleted by then never came here"
    with running_redis({**AT_ONCE, "repl-backlog-size": "16kb"}) as server:
        address = source(server)
        first = fill(server, "s", 60, "MAXLEN", "10")  # what it trimmed before is not lost
        fill(server, "other", 9, "MAXLEN", "1")
        run("follow", address, store, "--match", "s", "--once")
        missed = fill(server, "s", 150, "MAXLEN", "10")
        server.call("SET", "large", b"x" * (64 << 10))
        done = run("follow", address, store, "--match", "s", "--once", status=5)
        lines = done.stderr.splitlines()
        assert [line.partition("?db=0: ")[2] for line in lines if told in line] == [told, ""]
        assert history(store, "s") == first[-10:] + missed[-10:]
        health = objects("status", store, status=8)[0]
        assert (health["state"], health["redis"]["lost"]) == ("redis", 140)
        assert "had trimmed or deleted 140 entries before" in run("status", store, status=8).stdout
        assert "streamkeep_redis_lost_entries_total{" in run("metrics", store).stdout
        run("follow", address, store, "--match", "s", "--once")  # it is told once
        assert once(server, store).lost == 140  # a stream that was not to be followed lost nothing
        assert once(server, store, resync=True).lost == 0
        run("status", store)


def test_groups_that_a_difference_brings_are_counted(
    server: RealRedis, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by who has counted them while it was applied."""
    fill(server, "s", 3)
    finish = Synchronization._finish

    def count_and_finish(self: Any, txn: Any, same: Any) -> None:
        reader = threading.Thread(target=lambda: opened.xinfo_stream("s"))
        reader.start()
        reader.join()
        finish(self, txn, same)

    with streamkeep.open(store) as opened:
        Follower(source(server), opened).run(once=True)
        server.call("XGROUP", "CREATE", "s", "g", "$")
        monkeypatch.setattr(Synchronization, "_finish", count_and_finish)
        Follower(source(server), opened, resync=True).run(once=True)
        assert opened.xinfo_stream("s")["groups"] == 1


@pytest.mark.parametrize(("deletions", "kept"), [("apply", 1), ("keep", 8)])
def test_a_stream_that_was_made_again_takes_the_place_of_the_former(
    deletions: str, kept: int, store: Path
) -> None:
    """Or goes back to an earlier state, as with a server that starts from an older file.

    Of what went from that state before, nothing was missed.
    """
    with running_redis({**AT_ONCE, "repl-backlog-size": "16kb"}) as server:
        server.call("XADD", "s", "5-1", "a", "b")
        server.call("XADD", "s", "6-1", "a", "b")
        server.call("XADD", "t", "6-1", "a", "b")
        server.call("XADD", "v", "1-1", "a", "b")
        fill(server, "w", 9, "MAXLEN", "3")
        once(server, store)
        every = fill(server, "x", 2)
        earlier = {key: server.call("DUMP", key) for key in ("w", "x")}
        fill(server, "w", 1, "MAXLEN", "3")
        every += fill(server, "x", 2)
        once(server, store)
        for key, payload in earlier.items():
            server.call("RESTORE", key, 0, payload, "REPLACE")
        every += fill(server, "x", 1)
        server.call("DEL", "s", "t", "v")
        server.call("XADD", "s", "5-1", "a", "c")
        server.call("XADD", "t", "3-1", "a", "b")
        server.call("XADD", "t", "4-1", "a", "b")
        fill(server, "u", 1000)
        done = run("follow", source(server), store, "--once", "--deletions", deletions)
        verb = "archived" if deletions == "keep" else "deleted"
        assert f"{verb} 4 streams with 7 entries: the server has none of that" in done.stderr
        assert once(server, store, deletions=deletions).full == 2
        check_same(server, store, (*KEYS, b"w", b"x"))
        assert history(store, "x") == every  # which went on from there
        with streamkeep.open(store) as opened:
            assert sum(one.retired_entries for one in opened.archived_streams()) == kept


def test_what_a_killed_synchronization_has_left_goes_with_the_next_one(
    server: RealRedis, store: Path
) -> None:
    fill(server, "s", 3)
    left = b"streamkeep:load:follow:s"
    with streamkeep.open(store) as opened:
        opened.xadd(left, {"a": "b"})
        opened.xadd("streamkeep:load:another:s", {"a": "b"})
    once(server, store)
    with streamkeep.open(store) as opened:
        assert not opened.exists(left)
        assert opened.delete("streamkeep:load:another:s") == 1
    check_same(server, store)


def test_taking_all_streams_anew_that_ends_in_the_middle_begins_anew(
    server: RealRedis, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that was asked for, and the server would go on from the offset."""
    fill(server, "s", 9)
    once(server, store)
    fill(server, "s", 9)

    with monkeypatch.context() as patch:
        patch.setattr(Synchronization, "_finish", Mock(side_effect=StoreError("as a kill")))
        with pytest.raises(StoreError, match="as a kill"):
            once(server, store, resync=True)
    assert once(server, store).full == 2
    check_same(server, store)


def test_what_was_deleted_here_comes_back_when_all_streams_are_taken_anew(
    server: RealRedis, store: Path
) -> None:
    """What was trimmed here stays trimmed, since the history has it."""
    some, every = fill(server, "s", 4), fill(server, "t", 4)
    server.call("XADD", "u", "1-0", "a", "b")
    trimmed = fill(server, "v", 4)
    once(server, store)
    with streamkeep.open(store) as opened:
        opened.xdel("s", *some[:2])
        opened.xdel("t", *every)
        opened.xdel("u", "1-0")
        opened.xtrim("v", maxlen=1, approximate=False)
    server.call("XADD", "u", "2-0", "a", "b")
    told: list[str] = []
    once(server, store, resync=True, told=told.append)
    assert "?db=0: 3 entries that it has stay in the history only" in "".join(told)
    assert history(store, "v") == trimmed
    with streamkeep.open(store) as opened:
        assert opened.xlen("v") == 1
        assert opened.delete("v") == 1
    server.call("DEL", "v")
    check_same(server, store, (b"s", b"t", b"u"))


def test_only_keys_that_fit_are_followed(server: RealRedis, store: Path) -> None:
    fill(server, "orders:1", 3)
    fill(server, "other", 3)
    with followed(server, store, match=["orders:*"]) as follower:
        wait_until(lambda: following_of(store))
        fill(server, "orders:2", 3)
        fill(server, "other", 3)
        server.call("RENAME", "orders:1", "moved")
        server.call("COPY", "orders:2", "copy")
        server.call("DEL", "other", "orders:3")
        caught_up(server, store)
        assert follower.problem == ""
        server.call("RENAME", "moved", "orders:4")  # from where it was not followed
        server.call("SELECT", 1)
        fill(server, "orders:5", 3)
        server.call("SELECT", 0)
        wait_until(lambda: following_of(store).full == 2)
        caught_up(server, store)
    check_same(server, store, (b"orders:2", b"orders:4"))
    row = following_of(store)
    # Three XADD, RENAME to such a key, COPY to one.
    assert row.skipped["command for a key that is not followed"] == 5


def following_of(store: Path) -> Any:
    """Return how far a store is; None while there is none, or not a whole one."""
    try:
        with streamkeep.open(store, readonly=True) as opened:
            return following(opened)
    except NotAStoreError:
        return None


def test_a_copy_into_another_database_leaves_the_stream_of_that_name_alone(
    server: RealRedis, store: Path
) -> None:
    fill(server, "s", 3)
    server.call("SET", "string", "x")
    once(server, store)
    assert server.call("COPY", "string", "s", "DB", 1, "REPLACE") == 1
    assert once(server, store).commands > 0
    check_same(server, store)


def test_a_copy_that_names_the_database_that_is_followed_is_applied(
    server: RealRedis, store: Path
) -> None:
    server.call("SELECT", 3)
    fill(server, "s", 3)
    address = f"{source(server)}?db=3"
    Follower(address, store).run(once=True)
    server.call("COPY", "s", "t", "DB", 3)
    Follower(address, store).run(once=True)
    check_same(server, store)


def test_keys_from_another_database_are_taken_with_a_full_synchronization(
    server: RealRedis, store: Path
) -> None:
    with followed(server, store):
        wait_until(lambda: following_of(store))
        server.call("SELECT", 3)
        fill(server, "s", 4)
        server.call("MOVE", "s", 0)
        server.call("SELECT", 0)
        wait_until(lambda: following_of(store).full == 2)
        fill(server, "s", 4)
        caught_up(server, store)
    check_same(server, store)


def test_keys_from_another_database_that_do_not_fit_are_skipped(
    server: RealRedis, store: Path
) -> None:
    fill(server, "q1", 3)
    once(server, store, match="q*")
    commands = ["SELECT 1", "XADD zz 1-1 a b", "COPY zz z2 DB 0", "MOVE zz 0", "XADD q2 1-1 a b"]
    for command in commands:
        server.call(*command.split())
    report = once(server, store, match=["q*"])
    assert (report.full, report.skipped) == (1, {"command for database 1": 4})
    for command in ("COPY q2 z3 DB 0", "COPY q2 q2 DB 0", "SELECT 0"):
        server.call(*command.split())
    assert once(server, store, match=["q*"]).full == 2
    check_same(server, store, (b"q1", b"q2"))


@pytest.mark.parametrize(
    ("commands", "told"),
    [
        (["RENAME other q2"], "it brings the key 'other', which is not followed"),
        (["SELECT 1", "XADD x 1-1 a b", "SELECT 0", "SWAPDB 0 1"], "keys from another database"),
    ],
)
def test_once_takes_all_streams_anew_where_a_command_asks_for_that(
    server: RealRedis, store: Path, commands: list[str], told: str
) -> None:
    fill(server, "q1", 3)
    fill(server, "other", 3)
    once(server, store, match=["q*"])
    for command in commands:
        server.call(*command.split())
    fill(server, "q1", 3)
    said: list[str] = []
    report = once(server, store, match=["q*"], told=said.append)
    assert (report.full, said[1:-1]) == (2, [line for line in said if told in line])
    assert said[1].endswith(": all streams are taken anew; trying again")
    check_same(server, store, (b"q1", b"q2"))
    assert once(server, store, match=["q*"]).full == 2


def test_a_stream_of_the_store_is_never_overwritten(server: RealRedis, store: Path) -> None:
    with streamkeep.open(store) as opened:
        opened.xadd("mine", {"a": "b"})
        opened.xadd("t", {"a": "b"})
    server.call("SET", "t", "a string")
    server.call("FLUSHALL")
    once(server, store)
    server.call("SET", "t", "a string")
    server.call("FLUSHALL")
    once(server, store)
    server.call("XADD", "mine", "*", "c", "d")
    with pytest.raises(FollowError, match="a stream 'mine' of its own"):
        once(server, store)
    with pytest.raises(FollowError, match=r"a stream 'mine' of its own; .*no stream was changed"):
        once(server, store, resync=True)
    with streamkeep.open(store) as opened:
        assert [entry.fields for entry in opened.scan("mine")] == [{b"a": b"b"}]
        assert opened.exists("t")


@pytest.mark.parametrize(
    "command", ["XADD lock 1-1 a b", "COPY s lock", "XGROUP CREATE lock g 0 MKSTREAM"]
)
def test_a_string_of_the_store_and_a_stream_never_have_one_name(
    server: RealRedis, tmp_path: Path, store: Path, command: str
) -> None:
    fill(server, "s", 3)
    once(server, store)
    with served(store, unix=tmp_path / "u"), Peer(tmp_path / "u") as peer:
        assert peer.call("SET", "lock", "token") == b"+OK\r\n"
    server.call(*command.split())
    with pytest.raises(FollowError, match="a string 'lock' of its own"):
        once(server, store)
    with pytest.raises(FollowError, match=r"a string 'lock' of its own; .*no stream was changed"):
        once(server, store, resync=True)
    with served(store, unix=tmp_path / "u"), Peer(tmp_path / "u") as peer:
        assert peer.call("GET", "lock") == b"$5\r\ntoken\r\n"
        assert peer.call("DBSIZE") == b":2\r\n"
        assert peer.call("DEL", "lock") == b":1\r\n"
    once(server, store, resync=True)
    check_same(server, store, (b"lock", b"s"))


def test_a_name_that_is_taken_is_found_before_anything_changes(
    server: RealRedis, store: Path
) -> None:
    names = "abcdefghijkl"  # some of them stand before z in the file, whose order is a server's
    for name in names:
        fill(server, name, 3)
    once(server, store)
    with streamkeep.open(store) as opened:
        opened.xadd("z", {"a": "b"})
    for name in names + "z":
        fill(server, name, 3)
        server.call("XTRIM", name, "MAXLEN", 4)
    with pytest.raises(FollowError, match=r"a stream 'z' of its own; .*no stream was changed"):
        once(server, store, resync=True)
    with streamkeep.open(store) as opened:
        assert [opened.xlen(name) for name in names] == [3] * len(names)


def test_who_changes_what_follows_is_told(server: RealRedis, store: Path) -> None:
    fill(server, "s", 3)
    once(server, store)
    with streamkeep.open(store) as opened:
        opened.xadd("s", {"a": "b"}, id="99999999999999-1")
    fill(server, "s", 3)
    with pytest.raises(FollowError, match=r"XADD: .*smaller than the target.*--resync"):
        once(server, store)
    once(server, store, resync=True)
    check_same(server, store)


def test_a_store_that_is_detached_owns_its_streams(server: RealRedis, store: Path) -> None:
    fill(server, "s", 3)
    once(server, store)
    with streamkeep.open(store) as opened:
        assert opened.durability().redis == following(opened)
        assert detach(opened) == 1
        assert opened.durability().redis is None
        opened.xadd("s", {"a": "b"})
        assert opened.retention("s").archive
    with pytest.raises(FollowError, match="a stream 's' of its own"):
        once(server, store)


def test_another_server_is_refused_unless_it_goes_on(server: RealRedis, store: Path) -> None:
    fill(server, "s", 3)
    once(server, store)
    with running_redis(AT_ONCE) as other:
        fill(other, "s", 1)
        with pytest.raises(StoreError, match=r"the store follows unix://.*does not go on"):
            once(other, store)
        check_same(server, store)
        with pytest.raises(StoreError, match="another database than 2"):
            Follower(f"{source(server)}?db=2", store).run(once=True)
        once(other, store, resync=True)
        check_same(other, store)
        assert other.call("XLEN", "s") == 1
        assert following_of(store).source == f"{source(other)}?db=0"  # before any command comes


def test_a_promoted_replica_goes_on_with_the_history(store: Path, free_port: int) -> None:
    options = {**AT_ONCE, "port": "0", "repl-backlog-size": "1mb"}
    with (
        running_redis({**options, "port": str(free_port)}) as first,
        running_redis(options) as second,
    ):
        port: Any = first.call(b"CONFIG", b"GET", b"port")
        second.call("REPLICAOF", "127.0.0.1", port[1])
        wait_until(lambda: b"master_link_status:up" in second.call("INFO", "replication"))
        fill(first, "s", 3)
        wait_until(lambda: first.call(b"WAIT", 1, 1000) == 1)
        once(first, store)
        fill(first, "s", 3)
        wait_until(lambda: first.call(b"WAIT", 1, 1000) == 1)
        once(first, store)
        second.call("REPLICAOF", "NO", "ONE")
        once(second, store)
        assert following_of(store).source == f"{source(second)}?db=0"  # before any command comes
        fill(second, "s", 3)
        report = once(second, store)
        assert (report.full, report.source) == (1, f"{source(second)}?db=0")
        check_same(second, store)


def test_one_store_has_one_follower(server: RealRedis, store: Path) -> None:
    with followed(server, store):
        wait_until(lambda: following_of(store))
        with pytest.raises(StoreLockedError, match="another process follows"):
            once(server, store)


def test_passwords_and_rights(tmp_path: Path, store: Path) -> None:
    with running_redis(AT_ONCE) as server:
        server.call(
            "ACL", "SETUSER", "copier", "on", ">p@ss", "+psync", "+replconf", "+ping", "+info"
        )
        server.call("ACL", "SETUSER", "poor", "on", ">word", "+ping", "+info")
        server.call("ACL", "SETUSER", "default", "resetpass", ">other")
        fill(server, "s", 3)

        def from_user(user: str) -> Any:
            address = source(server).replace("unix://", f"unix://{user}@")
            return Follower(address, store).run(once=True)

        with pytest.raises(RefusedError, match="PING was refused: NOAUTH"):
            once(server, store)
        with pytest.raises(RefusedError, match="AUTH was refused: WRONGPASS"):
            from_user("copier:no")
        with pytest.raises(RefusedError, match="REPLCONF was refused: NOPERM"):
            from_user("poor:word")
        assert from_user("copier:p%40ss").entries == 3
        address = source(server).replace("unix://", "unix://copier@")
        assert Follower(address, store, password="p@ss").run(once=True).entries == 3
        assert "p@ss" not in str(following_of(store))


@pytest.mark.parametrize(
    "address", ["localhost", "http://localhost", "redis://", "redis://h/x", "redis://h:99999",
                "unix://", "redis://h?ssl=1"],
)  # fmt: skip
def test_addresses_that_cannot_be_used(address: str, store: Path) -> None:
    with pytest.raises(ArgumentError, match="is not the address of a Redis server"):
        Follower(address, store)


@pytest.mark.parametrize("wrong", [None, 3, b"x", [b"x"], "\udcff"])
@pytest.mark.parametrize("name", ["match", "skip"])
def test_patterns_and_names_of_commands_are_texts(name: str, wrong: Any, store: Path) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be a text"):
        Follower("redis://localhost", store, **{name: wrong})


@pytest.mark.parametrize(
    "password", ["12/secret", "12?secret", "12#secret", "/secret", "\u2100secret"]
)
def test_no_error_shows_a_password(password: str, store: Path) -> None:
    for form in ("redis://:{}@h", "redis://u:{}@h:1", "unix://:{}@/socket"):
        with pytest.raises(ArgumentError) as raised:
            Follower(form.format(password), store)
        assert "secret" not in str(raised.value)
        assert "12" not in str(raised.value)
    with pytest.raises(ArgumentError, match="must be text, not bytes"):
        Follower(f"redis://u:{password}@h".encode(), store)  # type: ignore[arg-type]


def test_the_end_of_following_shows_no_password(store: Path) -> None:
    with streamkeep.open(store):
        pass
    done = run("follow", "redis://u:secret@h", store, "--detach", status=1)
    assert "follows no server, not redis://h:6379/0" in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_no_server(store: Path) -> None:
    with pytest.raises(LinkLost, match=r"redis://127\.0\.0\.1:1/0: cannot connect"):
        Follower("redis://127.0.0.1:1", store).run(once=True)


def test_a_follower_that_never_had_a_connection_says_so(store: Path) -> None:
    with start_cli("follow", "redis://127.0.0.1:1", str(store)) as process:
        assert process.stderr is not None
        assert b"cannot connect" in line_of(process, process.stderr)
        process.terminate()
        said = process.stderr.read().decode()
    assert said == f"{store}: has nothing of redis://127.0.0.1:1/0 yet\n"


@pytest.mark.slow
def test_a_move_loses_and_doubles_nothing(tmp_path: Path, store: Path) -> None:
    """Programs write all the time, the follower is killed, and then they go to the store."""
    chance = random.Random(6)
    added: list[bytes] = []
    acked: list[bytes] = []
    end = threading.Event()

    def work(at: Path) -> None:
        client: Any = RealRedis(at)
        while not end.is_set():
            added.extend(client.call("XADD", "s", "MAXLEN", "~", 50, "*", "n", n) for n in range(9))
            for _, entries in client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"):
                acked.extend(one[0] for one in entries)
                client.call("XACK", "s", "g", *(one[0] for one in entries))
            client.call("WAIT", 1, 50)  # so that the backlog always has what the follower lacks
        client.close()

    with running_redis({**AT_ONCE, "repl-backlog-size": "64mb"}) as server:
        server.call(b"XGROUP", b"CREATE", b"s", b"g", b"$", b"MKSTREAM")
        once(server, store)
        program = threading.Thread(target=work, args=(server.socket,))
        program.start()
        for _ in range(4):
            worker = start(server, store)
            time.sleep(chance.uniform(1, 4))
            worker.kill()
            worker.wait()
        end.set()
        program.join()
        report = once(server, store)
        assert (report.full, report.lost) == (1, 0)
        with streamkeep.open(store) as opened:
            assert detach(opened) == 1
    end.clear()
    before = len(added)
    with served(store, unix=tmp_path / "u"):
        program = threading.Thread(target=work, args=(tmp_path / "u",))
        program.start()
        wait_until(lambda: len(added) > before + 100)
        end.set()
        program.join()
    assert history(store, "s") == added == acked


def test_a_server_that_starts_later_is_waited_for(tmp_path: Path, store: Path) -> None:
    told: list[str] = []
    with running_redis(AT_ONCE) as server:
        server.call(b"CONFIG", b"SET", b"requirepass", b"")
        fill(server, "s", 5)
        with followed(server, store, told=told.append):
            wait_until(lambda: following_of(store))
            server.call(b"CLIENT", b"KILL", b"TYPE", b"replica")
            fill(server, "s", 5)
            wait_until(lambda: len(told) >= 3)
            caught_up(server, store)
        assert "trying again" in told[1]
        assert told[2].endswith("goes on")
        check_same(server, store)
