"""DUMP, COPY, RESTORE, locks, times to live, and what INFO says of keys."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import redis

from patience import wait_until
from resp_peer import Line, Peer, Running, serving
from stores import open_at
from streamkeep.commands import strings
from streamkeep.engine.commands import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.redis.resp import encode_command
from streamkeep.format.rows import records
from streamkeep.server.resp.server import Server
from test_server.conftest import Connect


def test_dump_is_for_the_oldest_redis_that_loses_nothing(peer: Peer) -> None:
    def form() -> int:
        payload = peer.ask("DUMP", "k")
        assert peer.call("RESTORE", "copy", 0, payload, "REPLACE") == b"+OK\r\n"
        for words in (("XINFO", "STREAM"), ("XRANGE",)):
            more = ("FULL",) if words[0] == "XINFO" else ("-", "+")
            assert peer.ask(*words, "copy", *more) == peer.ask(*words, "k", *more)
        return int(payload[0])

    peer.call("XADD", "k", "1-0", "f", "v")
    peer.call("XGROUP", "CREATE", "k", "g", 0)
    peer.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", ">")
    assert form() == 21  # of Redis 7.2
    peer.call("XCFGSET", "k", "IDMP-MAXSIZE", 7)
    assert form() == 26
    peer.call("XADD", "k", "IDMP", "p", "i", "*", "f", "v")
    assert form() == 26
    peer.call("XNACK", "k", "g", "FAIL", "IDS", 1, "1-0")
    assert form() == 27


def test_a_copy_keeps_the_order_of_delivery(peer: Peer) -> None:
    for number in range(1, 7):
        peer.call("XADD", "s", f"{number}-0", "f", "v")
    peer.call("XGROUP", "CREATE", "s", "g", 0)
    peer.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    peer.call("XCLAIM", "s", "g", "d", 0, "3-0", "1-0", "2-0", "TIME", 5000)
    peer.call("XCLAIM", "s", "g", "d", 0, "6-0", "5-0", "TIME", 4000)
    peer.call("XNACK", "s", "g", "FAIL", "IDS", 2, "4-0", "2-0")
    assert peer.ask("COPY", "s", "t") == 1
    for key in ("t", "s"):
        [[_, entries]] = peer.ask("XREADGROUP", "GROUP", "g", "e", "CLAIM", 0, "STREAMS", key, ">")
        assert [one[0] for one in entries] == [b"4-0", b"2-0", b"6-0", b"5-0", b"3-0", b"1-0"]


def test_restore_checks_as_redis_does(peer: Peer) -> None:
    peer.call("XADD", "s", "1-0", "f", "v")
    payload = peer.ask("DUMP", "s")
    for words, reply in (
        (("s", "x", b"junk"), "-BUSYKEY Target key name already exists."),
        (("t", "x", b"junk"), "-ERR value is not an integer or out of range"),
        (("t", -1, b"junk"), "-ERR Invalid TTL value, must be >= 0"),
        (("t", 0, b"junk"), "-ERR DUMP payload version or checksum are wrong"),
        (("t", 0, payload, "FREQ", 256), "-ERR Invalid FREQ value, must be >= 0 and <= 255"),
        (("t", 0, payload, "IDLETIME", -1), "-ERR Invalid IDLETIME value, must be >= 0"),
        (("t", 0, payload, "IDLETIME", 1, "FREQ", 1), "-ERR syntax error"),
        (("t", (1 << 63) - 1, payload), "-ERR Invalid TTL value, must be >= 0"),
        (("t", 1, payload, "ABSTTL", "FREQ", 1, "FREQ", 2), "OK"),
    ):
        assert peer.ask("RESTORE", *words) == Line(reply), words
    assert peer.call("EXISTS", "t") == b":0\r\n"
    peer.call("SET", "k", "v")
    assert peer.call("DUMP", "k").startswith(b"-WRONGTYPE")


def facts(peer: Peer, section: str) -> dict[str, Any]:
    text = peer.ask("INFO", section).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def test_info_counts_strings_and_what_has_expired(running: Running, peer: Peer) -> None:
    peer.call("XADD", "s", "1-0", "f", "v")
    peer.call("SET", "lock", "v")
    assert facts(peer, "keyspace") == {"db0": "keys=2,expires=0,avg_ttl=0,subexpiry=0"}
    peer.call("EXPIRE", "s", 1000)
    peer.call("SET", "other", "v", "EX", 1000)
    peer.call("SET", "short", "v", "PX", 1)
    wait_until(lambda: facts(peer, "stats")["expired_keys"] == "1")
    assert facts(peer, "keyspace") == {"db0": "keys=3,expires=2,avg_ttl=0,subexpiry=0"}
    rows = running.server.store.row_range("redis.strings")
    assert [key for key, _ in rows] == [b"lock", b"other"]
    peer.call("SET", "short", "v", "PX", 1)
    wait_until(lambda: peer.call("GET", "short") == b"$-1\r\n")
    peer.call("SET", "short", "v", "NX")
    wait_until(lambda: facts(peer, "stats")["expired_keys"] == "2")


def test_a_wait_that_ends_with_an_error_is_a_failed_call(
    running: Running, connect: Connect, peer: Peer
) -> None:
    waiting = connect()
    number = waiting.ask("CLIENT", "ID")
    for failed, end in ((1, ("CLIENT", "UNBLOCK", number, "ERROR")), (2, ("DEL", "s"))):
        peer.call("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM")
        waiting.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
        wait_until(lambda: running.ask(lambda server: server.blocked.blocked) == 1)
        peer.call(*end)
        assert waiting.read().startswith(b"-")
        stats = facts(peer, "commandstats")["cmdstat_xreadgroup"]
        assert stats.startswith(f"calls={failed},")
        assert stats.endswith(f",failed_calls={failed}")


def test_scan_and_randomkey_do_not_read_all_names(
    running: Running, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with many streams would stop for others at each call."""
    names = {b"k%d" % number for number in range(300)}
    for name in names:
        peer.call("XADD", name, "1-0", "f", "v")
    peer.call("DEL", "k0", "k299")
    peer.call("RENAME", "k1", "renamed")
    peer.call("SET", "lock", "x")
    names = names - {b"k0", b"k1", b"k299"} | {b"renamed"}
    read = 0

    def counted(*row: Any) -> bytes:
        nonlocal read
        read += 1
        return row_body(*row)

    monkeypatch.setattr("streamkeep.engine.commands.keys.row_body", counted)
    monkeypatch.setattr(keys, "iter_keys", Mock(side_effect=AssertionError("all names are read")))
    cursor, found = b"0", []
    for _ in range(5):
        cursor, batch = peer.ask("SCAN", cursor, "COUNT", 10)
        found += batch
    assert len(set(found)) == 50
    assert read == 55
    while cursor != b"0":
        cursor, batch = peer.ask("SCAN", cursor, "COUNT", 90)
        found += batch
    assert sorted(found) == sorted({*names, b"lock"})
    assert peer.ask("SCAN", (1 << 64) - 1) == [b"0", [b"lock"]]
    more = ("COUNT", 999, "MATCH", "k?", "TYPE", "stream")
    assert sorted(peer.ask("SCAN", 0, *more)[1]) == [b"k%d" % number for number in range(2, 10)]
    assert peer.ask("SCAN", 0, "COUNT", 999, "TYPE", "string") == [b"0", [b"lock"]]
    cursor, batch = peer.ask("SCAN", 0, "COUNT", (1 << 63) - 1)
    assert (cursor, sorted(batch)) == (b"0", sorted({*names, b"lock"}))
    read = 0
    drawn = {peer.ask("RANDOMKEY") for _ in range(100)}
    assert drawn <= {*names, b"lock"}
    assert len(drawn) > 20
    assert read <= 100


def test_a_lock_of_redis_py(running: Running) -> None:
    client = redis.Redis(unix_socket_path=str(running.path))
    other = redis.Redis(unix_socket_path=str(running.path))
    try:
        with client.lock("lock", timeout=60) as lock:
            assert not other.lock("lock", timeout=60).acquire(blocking=False)
            lock.extend(60)
            lock.reacquire()
        second = other.lock("lock", timeout=60)
        assert second.acquire(blocking=False)
        client.delete("lock")
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            second.release()
    finally:
        client.close()
        other.close()


def test_the_script_of_other_clients_releases_a_lock(peer: Peer) -> None:
    script = (
        'if redis.call("get", KEYS[1]) == ARGV[1] then\n'
        '  return redis.call("del", KEYS[1])\nelse\n  return 0\nend'
    )
    peer.call("SET", "lock", "me", "NX", "PX", 60000)
    assert peer.call("EVAL", script, 1, "lock", "you") == b":0\r\n"
    with patch.dict(strings.KNOWN_DIGESTS):
        digest = peer.ask("SCRIPT", "LOAD", script)
        assert peer.ask("SCRIPT", "EXISTS", digest) == [1]
        assert peer.call("EVALSHA", digest, 1, "lock", "me") == b":1\r\n"
    assert peer.call("GET", "lock") == b"$-1\r\n"
    assert peer.call("EVAL", "return 1", 0).startswith(b"-ERR only the scripts by which")


def test_locks_and_deadlines_survive_the_server(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            open_at(tmp_path / "s") as store,
            serving(store, tmp_path / "k") as running,
            Peer(running.path) as peer,
        ):
            first = peer.call("SET", "lock", "me", "NX", "PX", 600_000) == b"+OK\r\n"
            if first:
                peer.call("XADD", "k", "1-0", "f", "v")
                peer.call("EXPIRE", "k", 600)
            else:
                assert peer.call("GET", "lock") == b"$2\r\nme\r\n"
            assert 590 < peer.ask("TTL", "k") <= 600
            assert peer.ask("KEYS", "*") == [b"k", b"lock"]


def test_a_stream_ends_at_its_deadline(running: Running, peer: Peer) -> None:
    peer.call("XADD", "k", "1-0", "f", "v")
    peer.call("XGROUP", "CREATE", "k", "g", "$")
    assert peer.call("PEXPIRE", "k", 30) == b":1\r\n"
    reply = peer.call("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "k", ">")
    assert reply.startswith(b"-NOGROUP No such key 'k'")
    assert peer.call("EXISTS", "k") == b":0\r\n"
    wait_until(lambda: not running.ask(lambda server: server.expiry.watches))
    assert running.server.store.row_range("redis.deadlines") == []


def test_a_string_ends_under_a_stream_that_a_program_has_made_of_its_name(
    running: Running, peer: Peer
) -> None:
    peer.call("SET", "k", "v", "PX", 30)
    running.server.store.xadd("k", {"f": "v"})
    wait_until(lambda: not running.ask(lambda server: server.expiry.watches))
    assert running.server.store.row_range("redis.strings") == []
    assert peer.call("XLEN", "k") == b":1\r\n"


def test_a_string_under_a_stream_that_a_program_has_made_is_no_key(
    running: Running, peer: Peer
) -> None:
    peer.call("SET", "k", "v")
    running.server.store.xadd("k", {"f": "v"})
    assert (peer.ask("KEYS", "*"), peer.ask("SCAN", 0)[1], peer.ask("DBSIZE")) == (
        [b"k"],
        [b"k"],
        1,
    )
    assert peer.call("COPY", "k", "to") == b":1\r\n"
    assert peer.call("XLEN", "to") == b":1\r\n"
    assert (peer.ask("DEL", "k"), peer.ask("EXISTS", "k")) == (1, 0)


@pytest.mark.parametrize("restored", [False, True])
def test_an_expired_stream_is_gone_for_the_next_command(
    running: Running, peer: Peer, restored: bool
) -> None:
    """An entry that is added to the old one would be deleted with it."""
    peer.call("XADD", "k", "5-0", "f", "v")
    payload = peer.ask("DUMP", "k")
    clock = running.server.environment.context.clock
    end_ms = clock.now_ms() + 20
    if restored:
        assert peer.call("RESTORE", "k", end_ms, payload, "ABSTTL", "REPLACE") == b"+OK\r\n"
    else:
        assert peer.call("PEXPIREAT", "k", end_ms) == b":1\r\n"
    wait_until(lambda: clock.now_ms() > end_ms + 5)
    assert peer.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    assert peer.call("TTL", "k") == b":-1\r\n"


def test_deadlines_cost_nothing_for_streams_that_have_none(running: Running, peer: Peer) -> None:
    for name in ("a", "b", "c"):
        peer.call("XADD", name, "1-0", "f", "v")
    peer.call("EXPIRE", "b", 100)
    with patch.object(records, "decode_key_row", wraps=records.decode_key_row) as decoded:
        running.ask(lambda server: server.expiry.renew())
        assert running.ask(lambda server: list(server.expiry.by_name)) == [b"b"]
    assert not decoded.called


@pytest.mark.parametrize("seed", range(5))
def test_a_server_knows_each_deadline_without_reading_all(
    running: Running, peer: Peer, seed: int
) -> None:
    rng = random.Random(seed)
    expiry = running.server.expiry
    running.server.settings.allow_flush = True
    peer.call("XADD", "s", "1-0", "f", "v")
    payload = peer.ask("DUMP", "s")

    def check(server: Server) -> None:
        found = dict(expiry.by_name)
        server.environment.read(expiry._load)
        assert found == expiry.by_name

    running.ask(lambda server: setattr(expiry, "_whole_s", float("inf")))
    for number in range(300):
        one, two, ms = rng.choice("abst"), rng.choice("abst"), rng.randrange(10_000, 99_999)
        words: list[str | int | bytes] = rng.choice([
            ["SET", one, "v", "PX", ms], ["SET", one, "v"], ["XADD", one, "*", "f", "v"],
            ["PEXPIRE", one, ms], ["PEXPIRE", one, ms], ["EXPIRE", one, -1], ["PERSIST", one],
            ["RENAME", one, two], ["RENAMENX", one, two], ["COPY", one, two, "REPLACE"],
            ["DEL", one, two], ["UNLINK", one], ["RESTORE", one, ms, payload, "REPLACE"],
            ["FLUSHALL"] if number % 100 == 0 else ["PEXPIREAT", one, 1],
        ])  # fmt: skip
        if number % 3:
            peer.call("MULTI")
            peer.call("PEXPIRE", two, ms)
        peer.call(*words)
        peer.call("EXEC")
        running.ask(check)


def test_commands_are_checked_only_while_there_is_a_need(running: Running, peer: Peer) -> None:
    assert not running.ask(lambda server: server.expiry.watches)
    peer.call("SET", "a", "b", "EX", 100)
    peer.call("PING")
    assert running.ask(lambda server: server.expiry.watches)
    peer.call("MULTI")
    peer.call("XADD", "a", "1-0", "f", "v")
    assert b"-WRONGTYPE" in peer.call("EXEC")
    peer.call("DEL", "a")
    peer.call("PING")
    assert not running.ask(lambda server: server.expiry.watches)


def test_a_key_that_is_set_again_after_its_end_is_listed(running: Running, peer: Peer) -> None:
    clock = running.server.environment.context.clock
    again = encode_command("SET", "k", "v") + encode_command("KEYS", "*")
    for _ in range(20):
        peer.call("SET", "k", "v", "PX", 10)
        end_ms = clock.now_ms() + 10
        while clock.now_ms() < end_ms:  # to come before the timer, where that is possible
            pass
        peer.socket.sendall(again)  # in one turn
        assert [peer.read(), peer.read()] == [b"+OK\r\n", b"*1\r\n$1\r\nk\r\n"]
