"""What clients ask of a server, not of its keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from real_redis.replies import as_newest
from real_redis.server import RealRedis
from resp_peer import Peer, Running, serving
from stores import open_at
from streamkeep.engine.api.views import Sync
from streamkeep.format.redis.resp import encode_command
from streamkeep.metrics.prometheus import text_of
from streamkeep.recovery.copies.shipper import Shipper
from streamkeep.server.resp import server_commands
from streamkeep.server.resp.info import SyncTimes, server_metrics
from test_server.conftest import Connect

# Each a session on one connection; the replies are those of Redis, byte for byte.
SESSIONS = {
    "ping": ["PING", "PING a", "PING a b", "ECHO x", "ECHO", "ping"],
    "select": ["SELECT 0", "SELECT 99", "SELECT x", "SELECT", "SELECT 99999999999"],
    "hello": ["HELLO 9", "HELLO x", "HELLO 3 NO", "HELLO 2 SETNAME"],
    "names": ["CLIENT GETNAME", "CLIENT SETNAME a", "CLIENT GETNAME", "CLIENT SETNAME \u00e4",
              "CLIENT", "CLIENT NOSUCH", "CLIENT ID x", "CLIENT SETNAME"],
    "unknown": ["NOSUCH", "NOSUCH a b", "nosuch " + "x" * 200, "NOSUCH " + "abc " * 60,
                "NOSUCH " + "é" * 64 + " x", "NOSUCH a\0b c", "CONFIG HELP x",
                "CLIENT MAINT_NOTIFICATIONS ON", "XGROUP NOSUCH", "XINFO", "OBJECT"],
    "multi": ["MULTI", "XADD k 1-0 f v", "XLEN k", "XADD k 1-0 f v", "PING", "EXEC", "XLEN k",
              "DEL k"],
    "multi refused": ["MULTI", "XADD k", "XLEN k", "EXEC", "EXEC", "DISCARD", "MULTI", "MULTI",
                      "NOSUCH", "DISCARD", "XLEN k"],
    "discard": ["MULTI", "XADD k 1-0 f v", "DISCARD", "XLEN k", "WATCH", "MULTI", "WATCH k",
                "EXEC"],
    "empty multi": ["MULTI", "EXEC"],
    "watch": ["WATCH k", "XADD k 1-0 f v", "MULTI", "XLEN k", "EXEC", "WATCH k", "MULTI", "XLEN k",
              "EXEC", "WATCH k", "XADD k 2-0 f v", "UNWATCH", "MULTI", "EXEC", "DEL k"],
    "blocking in multi": ["XGROUP CREATE k g 0 MKSTREAM", "MULTI", "XREAD BLOCK 0 STREAMS k $",
                          "XREADGROUP GROUP g c BLOCK 0 STREAMS k >", "EXEC", "DEL k"],
    "reply": ["CLIENT REPLY SKIP\nPING\nPING a", "CLIENT REPLY OFF\nPING\nCLIENT REPLY ON",
              "CLIENT REPLY SKIP\nCLIENT REPLY ON", "CLIENT REPLY SKIP\nRESET\nPING b",
              "CLIENT REPLY OFF\nRESET", "CLIENT REPLY SKIP\nCLIENT REPLY NO\nPING c",
              "CLIENT REPLY NO"],
    "unblock": ["CLIENT UNBLOCK 12345", "CLIENT UNBLOCK x", "CLIENT UNBLOCK 1 NO",
                "CLIENT NO-EVICT ON", "CLIENT NO-EVICT x"],
    "kill": ["CLIENT KILL 1.2.3.4:5", "CLIENT KILL ID 99999", "CLIENT KILL ID x",
             "CLIENT KILL TYPE normal ID 99999", "CLIENT KILL ID",
             "CLIENT KILL ADDR 1.2.3.4:5 SKIPME yes SKIPME maybe", "CLIENT KILL TYPE x"],
    "config": ["CONFIG GET nosuch", "CONFIG GET appendonly*x", "CONFIG SET nosuch 1",
               "CONFIG SET maxclients abc", "CONFIG SET appendfsync sometimes", "CONFIG",
               "CONFIG SET a", "CONFIG SET hz\0 10", "CONFIG SET maxclients 9\0",
               "CONFIG SET stream-node-max-bytes 5k", "CONFIG GET stream-node-max-bytes",
               "CONFIG SET stream-node-max-bytes 4KB", "CONFIG SET stream-node-max-bytes 4kg",
               "CONFIG SET stream-node-max-entries 1k", "CONFIG GET stream-node-max-bytes"],
    "auth": ["AUTH x", "AUTH nosuch x", "AUTH a b c"],
    "wait": ["WAIT 0 0", "WAIT 0 x", "WAIT x 0", "WAIT 0 -1"],
    "keys": ["XADD k 1-0 f v", "TYPE k", "TYPE no", "EXISTS k k no", "OBJECT ENCODING k",
             "OBJECT REFCOUNT k", "OBJECT ENCODING no", "OBJECT FREQ k", "RENAME k k2",
             "RENAME no k", "RENAMENX k2 k", "COPY k k3", "COPY k k3", "COPY k k3 REPLACE",
             "COPY no k", "COPY k k", "COPY k k4 DB 0", "COPY k k4 NO", "RANDOMKEY x", "KEYS no*",
             "DBSIZE", "DEL k k3 k4 no", "UNLINK no", "SCAN 0", "SCAN x", "SCAN 0 COUNT 0",
             "SCAN 0 NO", "RESTORE k 0 x", "RESTORE k -1 x", "RANDOMKEY", "MEMORY USAGE no",
             "DUMP no", "TOUCH no", "SCAN +1"],
    "strings": """\
SET a b NX XX|SET a b PX x NX XX|SET a b PX 0|SET a b PX x|SET a b EX 10 PX 10|SET a b|GET a
SET a b NX|SET a c NX GET|SET a c XX GET|GET a|GET no|TYPE a|EXISTS a no|OBJECT ENCODING a|TTL a
PTTL no|TTL no|XADD a 1-0 f v|XLEN a|XREAD STREAMS a 0|XGROUP CREATE a g 0|XINFO STREAM a
XREADGROUP GROUP g c STREAMS a >|XADD s 1-0 f v|GET s|SET s v NX|EXPIRE s 100 NX XX|EXPIRE s 100 GT
EXPIRE s x|EXPIRE s 100 FOO|EXPIRE s 9223372036854775807|PEXPIRE no -9223372036854775808
EXPIRE no 10|EXPIRE s 100|TTL s|EXPIRE s 50 GT|EXPIRE s 200 GT|TTL s|EXPIRE s 300 LT|EXPIRE s 300 XX
EXPIRE s 100 NX|TTL s|PERSIST s|PERSIST s|TTL s|EXPIRETIME s|EXPIREAT s 4000000000|EXPIRETIME s
PEXPIRETIME s|RENAME s t|EXPIRETIME t|COPY t u|EXPIRETIME u|EXPIRE t -1|EXISTS t|DEL t u a
SET a b PXAT 4000000000123|PEXPIRETIME a|SET a c KEEPTTL|PEXPIRETIME a|SET a d|TTL a|RENAME a b
GET b|RENAMENX b c|RENAMENX no c|SET d v|RENAMENX c d|COPY c e|GET e|EVALSHA abc 0|SCRIPT EXISTS abc
DBSIZE|DEL c d e|SET a b EXAT 1|GET a|DBSIZE\
""".replace("\n", "|").split("|"),
    "words that end at a NUL": [
        "XADD k 1-0 f v", "XGROUP CREATE k g $\0x", "XGROUP SETID k g -\0", "XTRIM k MAXLEN ~\0 5",
        "XADD k MAXLEN =\0x 5 2-0 f v", "XREAD STREAMS k $\0", "XPENDING k g -\0 +\0 1", "DEL k"],
    "reset": ["MULTI", "RESET", "EXEC", "QUIT"],
    "command": ["COMMAND GETKEYS XADD k * f v", "COMMAND GETKEYS XREAD STREAMS a b 0 0",
                "COMMAND GETKEYS NOSUCH a", "COMMAND GETKEYS XADD a", "COMMAND INFO nosuch",
                "COMMAND NOSUCH"],
}  # fmt: skip


@pytest.mark.redis
@pytest.mark.parametrize("session", SESSIONS)
def test_replies_are_those_of_redis(
    real: RealRedis, running: Running, peer: Peer, session: str
) -> None:
    real.call(b"FLUSHALL")
    with Peer(str(real._connection.path)) as theirs:
        for lines in SESSIONS[session]:
            for line in lines.split("\n"):
                for one in (theirs, peer):
                    one.send(*[word.encode() for word in line.split(" ")])
            assert peer.read() == as_newest(theirs.read()), lines
            if session == "reply" and "SKIP" not in lines:
                continue
        for one in (theirs, peer):
            one.send("PING", "the end") if session != "reset" else None
        if session != "reset":
            assert peer.read() == theirs.read()
        else:
            assert peer.is_closed()


def test_hello_switches_the_protocol(peer: Peer) -> None:
    assert peer.ask("HELLO", 3)[b"proto"] == 3
    peer.call("XADD", "k", "1-0", "f", "v")
    assert peer.call("XREAD", "STREAMS", "k", "0") == (
        b"%1\r\n$1\r\nk\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
    )
    for wait in ((), ("BLOCK", 1)):
        assert peer.call("XREAD", *wait, "STREAMS", "k", "$") == b"_\r\n"
    assert peer.call("INFO", "cluster") == b"=34\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n"
    assert peer.call("CLIENT", "TRACKINGINFO").startswith(b"%3\r\n$5\r\nflags\r\n~1\r\n$3\r\noff")
    assert b":2\r\n~1\r\n+readonly\r\n" in peer.call("COMMAND", "INFO", "get")
    assert peer.ask("HELLO", 2)[0] == b"server"
    for wait in ((), ("BLOCK", 1)):
        assert peer.call("XREAD", *wait, "STREAMS", "k", "$") == b"*-1\r\n"


def test_settings_have_an_effect(running: Running, peer: Peer) -> None:
    assert peer.call("CONFIG", "SET", "stream-node-max-entries", 3) == b"+OK\r\n"
    for number in range(1, 8):
        peer.call("XADD", "k", f"{number}-0", "f", "v")
    info = peer.ask("XINFO", "STREAM", "k")
    assert dict(zip(info[0::2], info[1::2], strict=True))[b"radix-tree-keys"] == 3
    assert peer.ask("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]
    peer.call("CONFIG", "SET", "appendfsync", "no")
    assert running.ask(lambda server: server.settings.sync) == "none"


@pytest.mark.parametrize(("opened", "waits"), [("none", [True, False]), ("commit", [True, True])])
def test_what_comes_over_http_is_on_disk_if_the_settings_say_so(
    tmp_path: Path, opened: Sync, waits: list[bool]
) -> None:
    with (
        open_at(tmp_path / "s", sync=opened) as store,
        serving(store, tmp_path / "k") as running,
        Peer(running.path) as peer,
    ):
        for mode, wait in zip(("always", "no"), waits, strict=True):
            peer.call("CONFIG", "SET", "appendfsync", mode)
            store.xadd("k", {"f": "v"})  # as HTTP does
            found = store.durability()
            assert (found.durable_commit == found.last_commit) == wait


def test_new_streams_remember_messages_as_the_settings_say(peer: Peer) -> None:
    peer.call("CONFIG", "SET", "stream-idmp-duration", 7, "stream-idmp-maxsize", 9)
    assert peer.ask("CONFIG", "GET", "stream-idmp-*") == [
        b"stream-idmp-duration", b"7", b"stream-idmp-maxsize", b"9"
    ]  # fmt: skip
    peer.call("XADD", "k", "1-0", "f", "v")
    info = peer.ask("XINFO", "STREAM", "k")
    facts = dict(zip(info[0::2], info[1::2], strict=True))
    assert (facts[b"idmp-duration"], facts[b"idmp-maxsize"]) == (7, 9)
    assert b"must be between" in peer.call("CONFIG", "SET", "stream-idmp-maxsize", 0)


def test_an_error_has_the_bytes_of_the_names(peer: Peer) -> None:
    assert peer.call("XPENDING", b"\xff", b"a\r\nb\x00c") == (
        b"-NOGROUP No such key '\xff' or consumer group 'a  b'\r\n"
    )


def test_maxsize_counts_the_bytes_of_the_protocol(peer: Peer) -> None:
    for number in range(1, 9):
        peer.call("XADD", "a", f"{number}-0", "f", "v" * 10)
    entry = len(b"*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$10\r\nvvvvvvvvvv\r\n")
    head = {2: len(b"*2\r\n$1\r\na\r\n"), 3: len(b"$1\r\na\r\n")}
    for protocol, size in head.items():
        peer.call("HELLO", protocol)
        for most, count in ((size + entry, 1), (size + entry + 1, 2)):
            reply = peer.call("XREAD", "MAXSIZE", most, "STREAMS", "a", "0")
            assert reply.count(b"*2\r\n$3") == count


def test_info_has_what_exporters_read(connect: Connect, peer: Peer) -> None:
    connect().call("PING")
    peer.call("XADD", "k", "*", "f", "v")
    text = peer.ask("INFO").decode()
    facts = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
    assert facts["connected_clients"] == "2"
    assert facts["blocked_clients"] == "0"
    assert facts["db0"] == "keys=1,expires=0,avg_ttl=0,subexpiry=0"
    assert int(facts["total_commands_processed"]) >= 3
    peer.call("XADD", "k")
    for words in ("MULTI", "XADD k 0-0 f v", "EXEC"):
        peer.call(*words.split())
    counters = peer.ask("INFO", "commandstats").decode() + peer.ask("INFO", "errorstats").decode()
    assert re.search(
        r"cmdstat_xadd:calls=2,usec=[1-9]\d*,.*,rejected_calls=1,failed_calls=1", counters
    )
    assert "errorstat_ERR:count=2\r\n" in counters
    assert set(peer.ask("INFO", "clients").decode().split("\r\n")[0:1]) == {"# Clients"}


def test_changes_are_counted_since_the_last_backup(running: Running, peer: Peer) -> None:
    def changes() -> int:
        text = peer.ask("INFO", "persistence").decode()
        return int(text.partition("rdb_changes_since_last_save:")[2].split("\r\n")[0])

    for _ in range(3):
        peer.call("XADD", "k", "*", "f", "v")
    peer.call("XLEN", "k")
    assert changes() == 3
    running.ask(lambda server: server.statistics.saved(2))
    assert changes() == 1


def test_waits_for_the_disk_are_measured(running: Running, peer: Peer) -> None:
    peer.call("CONFIG", "SET", "appendfsync", "always")
    peer.call("XADD", "k", "*", "f", "v")
    text = peer.ask("INFO", "persistence").decode()
    assert "streamkeep_syncs:1\r\n" in text
    lines = text_of(running.ask(server_metrics)).splitlines()
    assert 'streamkeep_sync_seconds_bucket{le="+Inf"} 1' in lines
    assert "streamkeep_redis_changes_total 1" in lines


def test_waitaof_replies_when_everything_is_on_disk(running: Running, peer: Peer) -> None:
    peer.call("CONFIG", "SET", "appendfsync", "no")
    peer.send("XADD", "k", "1-0", "f", "v")
    peer.send("WAITAOF", 1, 0, 0)
    peer.send("PING")
    assert [peer.read() for _ in range(3)] == [b"$3\r\n1-0\r\n", b"*2\r\n:1\r\n:0\r\n",
                                               b"+PONG\r\n"]  # fmt: skip
    durable = running.server.environment.durability()
    assert durable.durable_commit == durable.last_commit


def test_wait_waits_for_copies_elsewhere(running: Running, peer: Peer, tmp_path: Path) -> None:
    """It rides what is shipped anyway, and says how many copies have the client's commits."""
    assert peer.call("WAIT", 1, 1) == b":0\r\n"  # at once: there is nothing to wait for
    peer.call("XADD", "k", "1-0", "f", "v")
    shipper = Shipper(running.server.store, str(tmp_path / "target"), every="50ms")
    shipper.run(once=True)
    assert peer.call("WAIT", 1, 0) == b":1\r\n"
    peer.call("XADD", "k", "2-0", "f", "v")
    assert peer.call("WAIT", 1, 100) == b":0\r\n"  # nobody ships it
    assert peer.call("WAITAOF", 1, 0, 0) == b"*2\r\n:1\r\n:0\r\n"
    peer.call("MULTI")
    peer.call("WAIT", 1, 0)
    assert peer.call("EXEC") == b"*1\r\n:0\r\n"
    peer.send("WAIT", 1, 0)
    peer.send("PING")
    shipper.run(once=True)
    assert [peer.read(), peer.read()] == [b":1\r\n", b"+PONG\r\n"]


def test_client_kill_goes_through_all_clients_once(connect: Connect, peer: Peer) -> None:
    """Whatever number of filters there is; as in Redis, the last of each name counts."""
    other = connect()
    number = other.ask("CLIENT", "ID")
    mine = peer.ask("CLIENT", "ID")
    assert peer.call("CLIENT", "KILL", "MAXAGE", "x") == (
        b"-ERR maxage is not an integer or out of range\r\n"
    )
    assert peer.call("CLIENT", "KILL", "MAXAGE", 0) == b"-ERR maxage should be greater than 0\r\n"
    assert peer.ask("CLIENT", "KILL", "MAXAGE", 1000, "ID", number) == 0
    assert peer.ask("CLIENT", "KILL", *["ID", mine] * 1000, "ID", number) == 1
    assert other.is_closed()


@pytest.mark.redis
def test_commands_are_listed_by_a_filter(real: RealRedis, peer: Peer) -> None:
    filters = ("PATTERN XGROUP*", "pattern xinfo|s*", "MODULE x", "ACLCAT none", "NO x", "PATTERN")
    for words in filters:
        theirs = real.call(b"COMMAND", b"LIST", b"FILTERBY", *words.encode().split())
        if isinstance(theirs, list):
            found = peer.ask("COMMAND", "LIST", "FILTERBY", *words.split())
            assert sorted(found) == sorted(theirs)
        else:
            found = peer.call("COMMAND", "LIST", "FILTERBY", *words.split())
            assert found == f"-{theirs.text}\r\n".encode()
    assert peer.call("COMMAND", "LIST", "x") == b"-ERR syntax error\r\n"
    assert b"client|list" in peer.ask("COMMAND", "LIST")
    assert b"xread" in peer.ask("COMMAND", "LIST", "FILTERBY", "ACLCAT", "stream")
    assert b"movablekeys" in peer.call("COMMAND", "INFO", "eval")


@pytest.mark.parametrize("name", ["CLIENT", "CONFIG", "COMMAND", "OBJECT", "MEMORY", "ACL"])
def test_help_lists_the_subcommands_that_there_are(peer: Peer, name: str) -> None:
    head, *lines = peer.ask(name, "HELP")
    assert head == f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    listed = {f"{name}|{line}".lower().encode() for line in lines if not line.startswith(" ")}
    assert listed == set(peer.ask("COMMAND", "LIST", "FILTERBY", "PATTERN", f"{name}|*"))


def test_a_command_that_names_much_costs_little_for_each(peer: Peer) -> None:
    """Other clients wait for it."""
    once = peer.call("COMMAND", "INFO", "xinfo")
    known = server_commands._described.cache_info().misses
    assert peer.call("COMMAND", "INFO", *["XINFO"] * 50) == b"*50\r\n" + once[4:] * 50
    assert server_commands._described.cache_info().misses == known
    assert peer.call("CONFIG", "GET", *["*a*"] * 1001) == (
        b"-ERR CONFIG GET takes 1000 patterns at most\r\n"
    )
    assert peer.ask("CONFIG", "GET", *["hz"] * 1000) == [b"hz", b"10"]


def test_flushall_needs_permission(running: Running, peer: Peer) -> None:
    peer.call("XADD", "k", "1-0", "f", "v")
    assert peer.call("FLUSHALL").startswith(b"-ERR FLUSHALL deletes every stream")
    running.ask(lambda server: setattr(server.settings, "allow_flush", True))
    assert peer.call("FLUSHALL") == b"+OK\r\n"
    assert peer.call("DBSIZE") == b":0\r\n"


def test_shares_of_the_waits_are_bounds_of_the_histogram() -> None:
    times = SyncTimes()
    for _ in range(99):
        times.note(0.0002)
    times.note(9.0)
    assert (times.at_most_us(0.5), times.at_most_us(0.99)) == (250, 250)
    assert times.at_most_us(1.0) == 2_500_000
    assert times.count == 100


# --- MULTI and WATCH, beyond what `test_differential` compares ------------------------------------

REFUSED = b"-ERR Command not allowed inside a transaction\r\n"
ABORTED = b"-EXECABORT Transaction discarded because of previous errors.\r\n"


@pytest.mark.parametrize(
    "words",
    [
        ("SHUTDOWN",), ("CLIENT", "REPLY", "OFF"), ("PSYNC", "?", -1), ("FLUSHALL",),
        ("REPLCONF", "ACK", 1),
    ],
)  # fmt: skip
def test_what_a_transaction_cannot_have_ends_it(peer: Peer, words: tuple[str, ...]) -> None:
    assert peer.call("MULTI") == b"+OK\r\n"
    refused = peer.call(*words)
    assert refused == REFUSED or b"--allow-flush" in refused
    assert peer.call("XADD", "k", "1-0", "f", "v") == b"+QUEUED\r\n"
    assert peer.call("EXEC") == ABORTED
    assert peer.call("EXISTS", "k") == b":0\r\n"


@pytest.mark.parametrize("protocol", [2, 3])
def test_each_command_of_a_transaction_has_one_reply(
    running: Running, peer: Peer, protocol: int
) -> None:
    running.server.settings.allow_flush = True
    peer.call("HELLO", protocol)
    queued = [
        ("XADD", "k", "1-0", "f", "v"), ("FLUSHDB",), ("WAITAOF", 1, 0, 0), ("KEYS", "*"),
        ("XADD", "k", "2-0", "f", "v"), ("FLUSHALL", "SYNC"), ("INFO",), ("RANDOMKEY",),
        ("CONFIG", "GET", "hz"), ("COMMAND",), ("CLIENT", "LIST"), ("ROLE",), ("DBSIZE",),
        ("XGROUP", "HELP"), ("SCAN", 0), ("GET", "k"), ("DUMP", "k"), ("TIME",),
    ]  # fmt: skip
    data = b"".join(encode_command(*words) for words in [("MULTI",), *queued, ("EXEC",), ("PING",)])
    peer.socket.sendall(data)
    assert peer.read() == b"+OK\r\n"
    assert [peer.read() for _ in queued] == [b"+QUEUED\r\n"] * len(queued)
    replies = peer.read()
    assert replies.startswith(b"*%d\r\n" % len(queued))
    assert b"*2\r\n:1\r\n:0\r\n*0\r\n$3\r\n2-0\r\n+OK\r\n" in replies
    assert peer.read() == b"+PONG\r\n"


def test_a_change_of_another_process_is_seen_at_exec(running: Running, peer: Peer) -> None:
    peer.call("XADD", "k", "1-0", "f", "v")
    store = running.server.store  # what it changes is not by a command of the server
    changes: tuple[tuple[Callable[[], object], bytes], ...] = (
        (partial(store.xadd, "k", {"f": "v"}), b"*-1\r\n"),
        (partial(store.xtrim, "k", maxlen=0), b"*-1\r\n"),
        (partial(store.xgroup_create, "k", "g", id="0"), b"*1\r\n+PONG\r\n"),
        (partial(store.delete, "k"), b"*-1\r\n"),
    )
    for change, reply in changes:
        peer.call("WATCH", "k")
        change()
        peer.call("MULTI")
        peer.call("PING")
        assert peer.call("EXEC") == reply


def test_a_key_that_is_watched_again_takes_no_more_memory(running: Running, peer: Peer) -> None:
    held = set()
    for _ in range(3):
        assert peer.call("WATCH", "k", "k") == b"+OK\r\n"
        held.add(running.ask(lambda server: int(server.turns.held)))
    assert len(held) == 1
