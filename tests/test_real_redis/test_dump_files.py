"""RDB files, payloads and append-only files, against a real server: each takes the other's."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkeep
from cli_runner import objects, run
from conftest import assert_sound
from model.profile import configured
from patience import wait_until
from real_redis.commands import ALWAYS_A_CONSUMER
from real_redis.mixed import KEYS, random_command
from real_redis.server import RealRedis, running_redis
from real_redis.shown import TIMES, caller, stream
from redis_parts import stream_parts
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.format.redis.stream_dump import TARGETS
from streamkeep.format.redis.stream_parts import Part
from streamkeep.transfer.loading.staged import Load
from tiers import slow_but

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def real_redis() -> Iterator[RealRedis]:
    with running_redis() as server:
        yield server


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def server_folder(server: RealRedis) -> Path:
    return Path(server.call(b"CONFIG", b"GET", b"dir")[1].decode())


def fill(server: RealRedis) -> None:
    """Make streams of many shapes, and keys of all other types, on a server."""
    server.call(b"FLUSHALL")
    call: Any = server.call  # redis-py takes text and numbers, too
    for number in range(1, 1500):
        call(b"XADD", b"s", f"{number}-1", b"n", str(number * 7), b"pad", b"x" * (number % 90))
    call(b"XADD", b"s", b"1600-0", b"other", b"y" * 20_000, b"other", b"again")
    call(b"XADD", b"s", b"1601-0", b"exact", b"z" * 16_378)
    call(b"XADD", b"s", b"1602-0", b"text", b"the quick brown fox " * 40)
    call(b"XDEL", b"s", b"5-1", b"6-1", b"1499-1")
    call(b"XTRIM", b"s", b"MAXLEN", b"=", 1400)
    call(b"XGROUP", b"CREATE", b"s", b"g", b"0")
    call(b"XGROUP", b"CREATE", b"s", b"unread", b"200-1", b"ENTRIESREAD", b"200")
    call(b"XGROUP", b"CREATE", b"s", b"\xff\x00", b"$")
    for consumer, count in ((b"c1", 50), (b"c2", 7), (b"\xfe", 1)):
        words = [b"XREADGROUP", b"GROUP", b"g", consumer, b"COUNT", count, b"STREAMS", b"s", b">"]
        call(*words)
    call(b"XGROUP", b"CREATECONSUMER", b"s", b"g", b"idle")
    call(b"XDEL", b"s", b"110-1")
    call(b"XACK", b"s", b"g", b"112-1")
    call(b"XCLAIM", b"s", b"g", b"c2", 0, b"120-1", b"TIME", 12345, b"RETRYCOUNT", 9)
    call(b"XGROUP", b"CREATE", b"empty", b"g", b"0", b"MKSTREAM")
    call(b"XADD", b"emptied", b"MAXLEN", 0, b"5-5", b"a", b"b")
    call(b"SET", b"string", b"x" * 100)
    call(b"SET", b"number", 12345)
    call(b"RPUSH", b"list", *[b"a%d" % number for number in range(3000)])
    call(b"RPUSH", b"big list", b"x" * 10_000, b"y")
    call(b"SADD", b"integers", 1, 2, 3)
    call(b"SADD", b"set", *[b"m%d" % number for number in range(3000)])
    call(b"ZADD", b"zset", *[word for n in range(3000) for word in (n + 0.5, b"m%d" % n)])
    call(b"ZADD", b"small zset", 1.5, b"a", b"inf", b"b")
    call(b"HSET", b"hash", *[word for n in range(3000) for word in (b"f%d" % n, b"v%d" % n)])
    call(b"HSET", b"small hash", b"a", b"b")
    call(b"FUNCTION", b"LOAD", b"#!lua name=l\nredis.register_function('f', function() end)")
    call(b"EXPIRE", b"empty", 100_000)
    call(b"SELECT", 3)
    call(b"XADD", b"third", b"1-1", b"a", b"b")
    call(b"SELECT", 0)


def target_of(server: RealRedis) -> str:
    """Return the newest layout that a server reads: what it would lose is not in it."""
    known = {tuple(map(int, name.split("."))): name for name in TARGETS}
    return known[max(version for version in known if version <= server.version)]


STREAMS = (b"s", b"empty", b"emptied")


def both(server: RealRedis, store: Store, key: bytes, *left_out: bytes) -> tuple[Any, Any]:
    """Return all that a store and a server report about a stream of the same name."""
    if server.version < ALWAYS_A_CONSUMER:  # 7.2 also brought the time of the last delivery
        left_out += (b"active-time",)
    return stream(caller(store), key, *left_out), stream(server.call, key, *left_out)


@pytest.mark.parametrize("compression", [b"yes", b"no"])
def test_a_file_of_a_server_loads_equal(real_redis: RealRedis, compression: bytes) -> None:
    fill(real_redis)
    real_redis.call(b"CONFIG", b"SET", b"rdbcompression", compression)
    assert real_redis.call(b"SAVE") == b"OK"
    file = server_folder(real_redis) / "dump.rdb"
    summary = objects("load", "s", file)[-1]
    assert summary["streams"] == 4
    assert summary["dropped"] == {
        "function library": 1,
        "hash": 2,
        "list": 2,
        "number of a database, of a stream": 1,
        "set": 2,
        "sorted set": 2,
        "string": 2,
        "time of a stream to expire": 1,
    }
    with streamkeep.open("s", readonly=True) as store:
        for key in STREAMS:
            ours, theirs = both(real_redis, store, key)
            assert ours == theirs
        assert store.xlen("third") == 1
    assert_sound(Path("s"))


def test_a_server_starts_from_our_file_and_holds_the_same(real_redis: RealRedis) -> None:
    fill(real_redis)
    real_redis.call(b"SAVE")
    run("load", "s", server_folder(real_redis) / "dump.rdb", "--db", "0")
    target = target_of(real_redis)
    run("dump", "s", "--output", "ours.rdb", "--redis", target)
    with running_redis(file=Path("ours.rdb")) as other:
        assert sorted(other.call(b"KEYS", b"*")) == sorted(STREAMS)
        for key in STREAMS:
            assert stream(other.call, key) == stream(real_redis.call, key)
            assert other.call(b"XRANGE", key, b"-", b"+") == real_redis.call(
                b"XRANGE", key, b"-", b"+"
            )
        # With compression off, what both dump is the same to the byte.
        other.call(b"CONFIG", b"SET", b"rdbcompression", b"no")
        with streamkeep.open("s", readonly=True) as store:
            for key in STREAMS:
                assert other.call(b"DUMP", key) is not None
                payload = store.dump(key, target)
                assert payload is not None
                restored = other.call(b"RESTORE", b"copy", 0, payload, b"REPLACE")
                assert restored == b"OK"
                assert other.call(b"DUMP", b"copy") == other.call(b"DUMP", key)
        added = other.call(b"XADD", b"s", b"*", b"more", b"1")
        assert isinstance(added, bytes)


@given(stream_parts())
@configured(60)
def test_a_server_takes_any_stream_of_a_store(real_redis: RealRedis, parts: list[Part]) -> None:
    with tempfile.TemporaryDirectory(prefix="streamkeep-") as folder:
        with Store(Path(folder, "s"), sync="none") as store, Load(store) as load:
            incoming = load.begin(b"k", "test")
            assert incoming is not None
            for part in parts:
                incoming.take(part)
            load.publish()
            payload = store.dump("k", "7.0")
            assert payload is not None
            # Data that 7.0 cannot hold must not be there to compare.
            store.restore("k", 0, payload, replace=True)
            assert real_redis.call(b"RESTORE", b"k", 0, payload, b"REPLACE") == b"OK"
            # 7.0 computes the lag by another rule at its edges.
            ours, theirs = both(real_redis, store, b"k", b"lag")
            assert ours == theirs
            store.restore("k", 0, real_redis.call(b"DUMP", b"k"), replace=True)
            assert both(real_redis, store, b"k", b"lag")[0] == ours
        assert_sound(Path(folder, "s"))


def test_redis_cli_takes_our_commands(real_redis: RealRedis) -> None:
    program = shutil.which("redis-cli")
    if program is None:
        pytest.skip("redis-cli is not installed (redis-tools); this test pipes into it")
    fill(real_redis)
    real_redis.call(b"SAVE")
    run("load", "s", server_folder(real_redis) / "dump.rdb", "--db", "0")
    commands = run("dump", "s", "--format", "resp", "--redis", "7.0").stdout_bytes
    with running_redis() as other:
        socket = str(server_folder(other) / "socket")
        done = subprocess.run(
            [program, "-s", socket, "--pipe"], input=commands, capture_output=True, check=True
        )
        assert b"errors: 0" in done.stdout, done.stdout
        for key in STREAMS:
            ours, theirs = (stream(one.call, key, *LOST) for one in (other, real_redis))
            assert without_losses(ours) == without_losses(theirs)


LOST = (*TIMES, b"pel-count", b"lag")  # what commands cannot rebuild


def without_losses(told: Any) -> Any:
    """Return what commands can rebuild: no pending entries that are gone."""
    live = {one[0] for one in told[b"entries"]}
    for group in told[b"groups"]:
        for one in (group, *group[b"consumers"]):
            one[b"pending"] = [each for each in one[b"pending"] if each[0] in live]
    return told


@given(data=st.data())
@configured(100)
def test_what_a_server_refuses_we_do_not_take(real_redis: RealRedis, data: st.DataObject) -> None:
    """Damage under a right checksum: the server checks payloads deeply, and so do we."""
    from streamkeep.format.core.errors import CorruptionError
    from streamkeep.format.redis.rdb_values import crc64
    from streamkeep.format.redis.stream_dump import read_payload

    call: Any = real_redis.call
    if not call(b"EXISTS", b"small"):
        for number in range(1, 8):
            call(b"XADD", b"small", f"{number}-0", b"a", number, b"b", b"text")
        real_redis.call(b"XDEL", b"small", b"3-0")
        real_redis.call(b"XGROUP", b"CREATE", b"small", b"g", b"0")
        call("XREADGROUP", "GROUP", "g", "c", "COUNT", 3, "STREAMS", "small", ">")
    payload = real_redis.call(b"DUMP", b"small")
    body = bytearray(payload[:-10])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    sealed = bytes(body) + payload[-10:-8]
    damaged = sealed + crc64(sealed).to_bytes(8, "little")
    answer = real_redis.call(b"RESTORE", b"damaged", 0, damaged, b"REPLACE")
    if answer != b"OK":
        with pytest.raises(CorruptionError):
            list(read_payload(damaged, "test"))


COMMANDS = 400


def begin_appending(server: RealRedis) -> Path:
    """Have a server write an append-only file; return its folder."""
    call: Any = server.call
    call(b"CONFIG", b"SET", b"aof-use-rdb-preamble", b"no")
    call(b"CONFIG", b"SET", b"appendfsync", b"always")
    call(b"CONFIG", b"SET", b"appendonly", b"yes")
    folder = server_folder(server) / "appendonlydir"
    wait_until(
        lambda: (
            b"aof_rewrite_in_progress:1" not in call(b"INFO", b"persistence")
            and list(folder.glob("*.manifest"))
        )
    )
    return folder


@pytest.mark.parametrize("seed", slow_but(range(8), 0, 3, 6))
def test_what_a_server_wrote_is_loaded_as_the_server_loads_it(seed: int) -> None:
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
