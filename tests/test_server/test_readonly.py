"""A server whose clients may only read: of a standby, and of what another server feeds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import streamkeep
from cli_runner import run
from crash.power import another_boot, copy_store
from patience import PATIENCE_S, wait_until
from resp_peer import Peer, serving
from stores import open_at
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import StoreError
from streamkeep.recovery import ship
from streamkeep.recovery.copies.standby import Standby
from streamkeep.recovery.fsck.store import check
from streamkeep.server import serve

REFUSED = b"-READONLY You can't write against a read only replica.\r\n"


def info(peer: Peer) -> dict[str, str]:
    text = peer.ask("INFO", "replication").decode()
    return dict(line.split(":", 1) for line in text.splitlines()[1:])


def test_clients_of_a_standby_read_and_never_write(tmp_path: Path) -> None:
    target, place = str(tmp_path / "target"), tmp_path / "standby"
    with streamkeep.open(tmp_path / "store") as store:
        first = store.xadd("s", {"n": "0"})
        store.xgroup_create("s", "g", "0")
        ship(store, target)
        following = Standby(target, place)
        try:
            with (
                streamkeep.open(place, readonly=True) as reader,
                serving(reader, tmp_path / "socket") as running,
                Peer(running.path) as peer,
            ):
                assert peer.ask("XRANGE", "s", "-", "+") == [[first, [b"n", b"0"]]]
                assert peer.ask("XINFO", "GROUPS", "s")[0][1] == b"g"
                for words in (
                    ("XADD", "s", "*", "n", "1"),
                    ("XADD", "new", "*", "n", "1"),
                    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"),
                    ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "9", "STREAMS", "s", ">"),
                    ("XTRIM", "s", "MAXLEN", "0"),
                    ("XGROUP", "CREATE", "s", "h", "0"),
                    ("DEL", "s"),
                    ("SET", "lock", "me"),
                    ("EXPIRE", "s", "1"),
                ):
                    assert peer.call(*words) == REFUSED, words
                assert peer.call("MULTI") == b"+OK\r\n"
                assert peer.call("XADD", "s", "*", "n", "1") == REFUSED
                assert peer.call("EXEC").startswith(b"-EXECABORT")
                assert peer.call("MULTI") == b"+OK\r\n"
                assert peer.call("XLEN", "s") == b"+QUEUED\r\n"
                assert peer.ask("EXEC") == [1]
                for name in ("PSYNC ? -1", "SYNC", "BGSAVE", "WAIT 1 0", "REPLICAOF NO ONE"):
                    assert b"reading only" in peer.call(*name.split())
                assert b"reading only" in peer.call("WAITAOF", "1", "0", "0")

                found = info(peer)
                assert found["role"] == "slave"
                assert found["master_link_status"] == "up"
                assert int(found["slave_repl_offset"]) == following.state.commit_number
                assert peer.ask("ROLE")[::3] == [b"slave", b"connected"]
                assert peer.ask("HELLO")[11] == b"replica"

                # A client that waits gets what the standby applies.
                peer.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
                wait_until(lambda: running.ask(lambda server: server.blocked.blocked) == 1)
                second = store.xadd("s", {"n": "1"})
                ship(store, target)
                following.run(once=True)
                assert second in peer.read()
        finally:
            following.close()
        with (
            streamkeep.open(place, readonly=True) as reader,
            serving(reader, tmp_path / "socket2") as running,
            Peer(running.path) as peer,
        ):
            assert info(peer)["master_link_status"] == "down"
    assert not list(check(place))


@pytest.mark.parametrize("opened", [False, True])
def test_a_standby_that_was_killed_is_promoted_after_another_boot(
    tmp_path: Path, opened: bool
) -> None:
    """It is recovered first; a program that opens it for writing is told what it is."""
    target, place, lost = str(tmp_path / "target"), tmp_path / "standby", tmp_path / "lost"
    with streamkeep.open(tmp_path / "store") as store:
        store.xadd("s", {"n": "0"})
        ship(store, target)
        following = Standby(target, place)
        try:
            for number in range(2):
                store.xadd("s", {"n": str(number)})
                ship(store, target)
                following.run(once=True)
                if not number:
                    following.environment.make_checkpoint()
            copy_store(place, lost)
        finally:
            following.close()
    with another_boot():
        if opened:
            with pytest.raises(StoreError, match="a standby that follows"):
                streamkeep.open(lost)
        run("promote", lost)
        with streamkeep.open(lost) as promoted:
            assert promoted.xlen("s") == 2  # it had the third in memory only
            promoted.xadd("s", {"n": "2"})


def put_with_deadlines(tmp_path: Path, clock: ManualClock, **deadlines: int) -> None:
    """Have an owner of the store make streams that expire after so many ms."""
    with (
        open_at(tmp_path / "store", clock=clock) as store,
        serving(store, tmp_path / "owner") as owner,
        Peer(owner.path) as peer,
    ):
        for name, wait_ms in deadlines.items():
            peer.ask("XADD", name, "1-1", "n", "0")
            assert peer.ask("PEXPIRE", name, str(wait_ms)) == 1


def test_what_has_expired_is_gone_for_clients_before_its_owner_deletes_it(tmp_path: Path) -> None:
    clock = ManualClock()
    put_with_deadlines(tmp_path, clock, s=60_000, later=120_900)
    clock.ms += 120_000
    with (
        open_at(tmp_path / "store", clock=clock, readonly=True) as reader,
        serving(reader, tmp_path / "reader") as running,
        Peer(running.path) as peer,
    ):
        assert reader.xlen("s") == 1
        assert peer.ask("XLEN", "s") == peer.ask("EXISTS", "s") == 0
        assert peer.ask("XREAD", "STREAMS", "s", "0") is None
        assert peer.ask("KEYS", "*") == peer.ask("SCAN", "0")[1] == [peer.ask("RANDOMKEY")]
        clock.ms += 900
        wait_until(lambda: peer.ask("XLEN", "later") == 0)
        assert peer.ask("KEYS", "*") == []
        assert peer.call("INFO", "errorstats").count(b"errorstat") == 0


@pytest.mark.parametrize("readonly", [True, False])
def test_what_has_expired_is_gone_over_http(tmp_path: Path, readonly: bool) -> None:
    pytest.importorskip("starlette")
    httpx = pytest.importorskip("httpx")
    clock = ManualClock()
    put_with_deadlines(tmp_path, clock, s=60_000)
    with (
        open_at(tmp_path / "store", clock=clock, readonly=readonly) as store,
        serving(store, tmp_path / "k") as running,
        httpx.Client() as client,
    ):
        options = serve.Options(http="127.0.0.1:0", write=not readonly)
        start = serve.start_http(store, options, None, running.server)
        http, place = asyncio.run_coroutine_threadsafe(start, running.loop).result(PATIENCE_S)
        try:
            assert client.get(f"http://{place}/streams/s").status_code == 200
            running.ask(lambda server: server.expiry.close())
            clock.ms += 60_000
            assert client.get(f"http://{place}/streams").json()["streams"] == []
            if not readonly:
                assert client.post(f"http://{place}/streams/s?id=2-1", json={"n": 1}).is_success
                assert [one.id for one in store.xrange("s")] == [b"2-1"]
                assert len(client.get(f"http://{place}/streams").json()["streams"]) == 1
            else:
                assert client.get(f"http://{place}/streams/s").status_code == 404
                assert store.xlen("s") == 1
        finally:
            asyncio.run_coroutine_threadsafe(http.stop(), running.loop).result(PATIENCE_S)


def test_a_standby_of_a_server_is_promoted(tmp_path: Path) -> None:
    """STORE follows a running server; the same two commands as with a copy."""
    place = tmp_path / "standby"
    with (
        streamkeep.open(tmp_path / "store") as store,
        serving(store, tmp_path / "socket") as running,
    ):
        first = store.xadd("s", {"n": "0"})
        store.xgroup_create("s", "g", "0")
        store.xreadgroup("g", "c", {"s": ">"})
        source = f"unix://{running.path}"
        run("standby", source, place, "--once")
        with (
            streamkeep.open(place, readonly=True) as reader,
            serving(reader, tmp_path / "socket2") as other,
            Peer(other.path) as peer,
        ):
            found = info(peer)
            assert (found["role"], found["master_link_status"]) == ("slave", "down")
            assert peer.ask("XPENDING", "s", "g")[:2] == [1, first]
            assert peer.call("XADD", "s", "*", "n", "1") == REFUSED
    run("promote", place)
    with streamkeep.open(place) as promoted:
        promoted.xadd("s", {"n": "1"})
        assert promoted.xack("s", "g", first) == 1
    assert "no standby" in run("promote", place, status=3).stderr
    assert not list(check(place))


@pytest.mark.parametrize("option", [["--write", "--http", "127.0.0.1:0"], ["--allow-flush"]])
def test_what_would_change_the_store_is_refused(tmp_path: Path, option: list[str]) -> None:
    streamkeep.open(tmp_path / "store").close()
    result = run("serve", tmp_path / "store", "--readonly", *option, status=2)
    assert f"no {option[0]}" in result.stderr
