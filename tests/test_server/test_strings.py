"""Locks and times to live."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from patience import wait_until
from real_redis.server import running_redis
from resp_peer import Peer, Running, serving
from stores import open_at

# The same words to both, one by one; the replies are those of Redis, byte for byte.
LINES = (
    """
SET a b NX XX|SET a b PX 0|SET a b PX x|SET a b EX 10 PX 10|SET a b|GET a|SET a b NX|SET a c NX GET
SET a c XX GET|GET a|GET no|TYPE a|EXISTS a no|OBJECT ENCODING a|TTL a|PTTL no|TTL no|XADD a 1-0 f v
XLEN a|XREAD STREAMS a 0|XGROUP CREATE a g 0|XINFO STREAM a|XREADGROUP GROUP g c STREAMS a >
XADD s 1-0 f v|GET s|SET s v NX|EXPIRE s 100 NX XX|EXPIRE s 100 GT|EXPIRE s x|EXPIRE s 100 FOO
EXPIRE s 9223372036854775807|EXPIRE no 10|EXPIRE s 100|TTL s|EXPIRE s 50 GT|EXPIRE s 200 GT|TTL s
EXPIRE s 300 LT|EXPIRE s 300 XX|EXPIRE s 100 NX|TTL s|PERSIST s|PERSIST s|TTL s|EXPIRETIME s
EXPIREAT s 4000000000|EXPIRETIME s|PEXPIRETIME s|RENAME s t|EXPIRETIME t|COPY t u|EXPIRETIME u
EXPIRE t -1|EXISTS t|DEL t u a|SET a b PXAT 4000000000123|PEXPIRETIME a|SET a c KEEPTTL
PEXPIRETIME a|SET a d|TTL a|RENAME a b|GET b|RENAMENX b c|RENAMENX no c|SET d v|RENAMENX c d
COPY c e|GET e|EVALSHA abc 0|SCRIPT EXISTS abc|DBSIZE|DEL c d e|SET a b EXAT 1|GET a|DBSIZE
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.mark.redis
def test_replies_are_those_of_redis(running: Running, peer: Peer) -> None:
    with running_redis() as real, Peer(str(real._connection.path)) as theirs:
        for line in LINES:
            assert peer.call(*line.split(" ")) == theirs.call(*line.split(" ")), line


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
    wait_until(lambda: not running.ask(lambda server: server.watches_commands))
    assert running.server.store.row_range("redis.deadlines") == []


def test_an_expired_stream_is_gone_for_the_next_command(running: Running, peer: Peer) -> None:
    peer.call("XADD", "k", "5-0", "f", "v")
    now_ms = running.server.environment.context.clock.now_ms()
    peer.send("PEXPIREAT", "k", now_ms + 20)
    assert peer.read() == b":1\r\n"
    clock = running.server.environment.context.clock
    wait_until(lambda: clock.now_ms() > now_ms + 25)
    assert peer.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    assert peer.call("TTL", "k") == b":-1\r\n"


def test_commands_are_checked_only_while_there_is_a_need(running: Running, peer: Peer) -> None:
    assert not running.ask(lambda server: server.watches_commands)
    peer.call("SET", "a", "b")
    peer.call("PING")
    assert running.ask(lambda server: server.watches_commands)
    peer.call("MULTI")
    peer.call("XADD", "a", "1-0", "f", "v")
    assert b"-WRONGTYPE" in peer.call("EXEC")
    peer.call("DEL", "a")
    peer.call("PING")
    assert not running.ask(lambda server: server.watches_commands)
