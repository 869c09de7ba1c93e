"""load of commands: each one that an append-only file may hold (Redis 8.10), and wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, run
from dumped_stores import differences, fill
from streamkeep.format.redis.resp import encode_command
from streamkeep.transfer import aof

pytestmark = pytest.mark.usefixtures("sound_folder")


def load(*commands: str | bytes, status: int = 0, options: tuple[str, ...] = ()) -> str:
    """Load commands, each a plain line or a whole RESP command; return the messages."""
    data = b"".join(
        one if isinstance(one, bytes) else encode_command(*one.split()) for one in commands
    )
    Path("a.aof").write_bytes(data)
    return run("load", "s", "a.aof", *options, status=status).stderr


def ids(key: str) -> list[str]:
    return [one["id"] for one in objects("range", "s", key)[:-1]]


def payload_of_one() -> bytes:
    """Return the payload of a stream with the entry 7-0."""
    with streamkeep.open("other") as store:
        store.xadd("r", {"a": "b"}, "7-0")
        payload = store.dump("r")
    assert payload is not None
    return payload


FIVE = tuple(f"XADD k {number}-0 a {number}" for number in range(1, 6))
PENDING = (
    "XGROUP CREATE k g 0",
    "XGROUP CREATE k h 0",
    "XCLAIM k g c 0 1-0 2-0 3-0 TIME 1000 RETRYCOUNT 1 FORCE JUSTID LASTID 3-0",
    "XCLAIM k h c 0 1-0 2-0 TIME 1000 RETRYCOUNT 1 FORCE JUSTID LASTID 5-0",
)


def pending(group: str) -> list[str]:
    """Return the IDs that a group of `k` has pending."""
    with streamkeep.open("s", readonly=True, decode_responses=True) as store:
        return [one["message_id"] for one in store.xpending_range("k", group, "-", "+", 99)]


# --- what becomes of entries and of what is pending ---------------------------------------------


@pytest.mark.parametrize(
    ("commands", "left", "g", "h"),
    [
        ("XDELEX k IDS 1 2-0; XDELEX k KEEPREF IDS 2 4-0 9-0", "1 3 5", "1 2 3", "1 2"),
        ("XDELEX k DELREF IDS 1 1-0; XDELEX k IDS 2 2-0 3-0 ACKED", "2 3 4 5", "2 3", "2"),
        ("XACKDEL k g IDS 1 1-0; XACKDEL k g DELREF IDS 1 2-0", "3 4 5", "3", "1"),
        ("XADD k DELREF MAXLEN = 3 6-0 a 6", "4 5 6", "", ""),
        ("XADD k MAXLEN 3 KEEPREF 6-0 a 6", "4 5 6", "1 2 3", "1 2"),
        ("XADD k NOMKSTREAM ACKED MINID = 3 6-0 a 6", "1 2 3 4 5 6", "1 2 3", "1 2"),
        ("XTRIM k MAXLEN = 3 DELREF", "3 4 5", "3", ""),
        ("XTRIM k DELREF MINID 3-0", "3 4 5", "3", ""),
        ("XTRIM k MAXLEN = 4 LIMIT 10", "2 3 4 5", "1 2 3", "1 2"),
        ("XADD k MAXLEN = 4 LIMIT 10 6-0 a 6", "3 4 5 6", "1 2 3", "1 2"),
    ],
)
def test_what_was_deleted_or_trimmed_does_to_groups_what_its_policy_says(
    commands: str, left: str, g: str, h: str
) -> None:
    load(*FIVE, *PENDING, *commands.split("; "))
    found = (ids("k"), pending("g"), pending("h"))
    assert [" ".join(one.removesuffix("-0") for one in each) for each in found] == [left, g, h]


def test_messages_are_remembered_with_the_ids_that_the_server_gave() -> None:
    load(
        "XADD k IDMP p one 1-0 a 1",
        "XCFGSET k IDMP-DURATION 86400",
        "XADD k IDMP p two 18446744073709550000-7 a 2",
        "XADD k IDMPAUTO q MAXLEN = 2 18446744073709550001-0 a 3",
    )
    assert ids("k") == ["18446744073709550000-7", "18446744073709550001-0"]
    with streamkeep.open("s") as store:
        assert store.xinfo_stream("k")["iids-tracked"] == 2
        again = store.xadd("k", {"a": "2"}, idmp=("p", "two"))
        assert again == b"18446744073709550000-7"
        assert store.xadd("k", {"a": "3"}, idmpauto="q") == b"18446744073709550001-0"


# --- keys of any type ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "DEL k",
        "UNLINK x k",
        "DELEX k",
        "FLUSHALL",
        "FLUSHDB ASYNC",
        "EXPIRE k -1",
        "MOVE k 3",
        "SET k v",
        "SET k v PXAT 99999999999999",
        "SETEX k 5 v",
        "MSET a b k v",
        "SUNIONSTORE k x y",
        "ZRANGESTORE k x 0 -1",
        "BITOP AND k x y",
        "SORT x BY nosort STORE k",
        "RENAME string k",
        "COPY string k REPLACE",
    ],
)
def test_a_stream_that_another_command_removed_or_replaced_is_gone(command: str) -> None:
    load(*FIVE, "XADD other 1-0 a b", command)
    assert "k" not in lines("streams", "s")
    assert ("other" in str(lines("streams", "s"))) == (not command.startswith("FLUSH"))


@pytest.mark.parametrize(
    "command",
    ["SADD set k", "HSET h k v", "SET s v", "RENAME a b", "DELEX k IFEQ v", "PERSIST k", "XLEN k"],
)
def test_commands_on_other_keys_are_counted_and_leave_streams_alone(command: str) -> None:
    told = load(*FIVE, command)
    assert f"dropped: command {command.split()[0]}" in told
    assert len(ids("k")) == 5


def test_streams_are_renamed_copied_and_restored() -> None:
    payload = payload_of_one()
    told = load(
        *FIVE,
        *PENDING,
        "COPY k copy",
        "XDEL k 1-0",
        "COPY k copy2 REPLACE",
        "RENAMENX k new",
        encode_command("RESTORE", "back", 0, payload, "ABSTTL"),
        encode_command("RESTORE", "new", 5000, payload, "REPLACE"),
        "COPY copy elsewhere DB 3",
        "PEXPIREAT back 99999999999999",
    )
    assert "dropped: time of a stream to expire (2 times)" in told
    assert "dropped: copy of a key into another database" in told
    assert ids("copy") == ["1-0", "2-0", "3-0", "4-0", "5-0"]
    assert ids("copy2") == ["2-0", "3-0", "4-0", "5-0"]
    assert ids("new") == ids("back") == ["7-0"]
    with streamkeep.open("s", readonly=True) as store:
        assert [one["pending"] for one in store.xinfo_groups("copy")] == [3, 2]


# --- transactions, annotations, quotes ----------------------------------------------------------


def test_a_transaction_without_an_end_is_not_run() -> None:
    told = load("XADD k 1-0 a b", "MULTI", "XADD k 2-0 a b", "XADD k 3-0 a b", status=1)
    assert "a.aof: the file ends in the transaction that MULTI, command 2, begins" in told
    assert "; 1 command applied" in told
    assert ids("k") == ["1-0"]


def test_a_transaction_is_one_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aof, "BATCH_COMMANDS", 2)
    many = [f"XADD k {number}-0 a b" for number in range(2, 12)]
    load("XADD k 1-0 a b", "MULTI", *many, "EXEC", "MULTI", "DEL k", "DISCARD")
    assert len(ids("k")) == 11


def test_commands_before_a_torn_end_are_run_and_counted() -> None:
    whole = encode_command("XADD", "k", "1-0", "a", "b")
    told = load(whole, "SET a b", "SET c d", whole[:-5], status=1)
    assert "truncated: expected" in told
    assert "; 3 commands applied, dropped: command SET (2 times)" in told
    assert ids("k") == ["1-0"]


@pytest.mark.parametrize("ttl", ["soon", "0"])
def test_a_restore_that_is_refused_ends_the_load_with_all_before_it_done(ttl: str) -> None:
    payload = payload_of_one()
    problem = "value is not an integer"
    if ttl == "0":
        payload = payload[:-1] + bytes([payload[-1] ^ 1])
        problem = "DUMP payload version or checksum are wrong"
    told = load("XADD k 1-0 a b", encode_command("RESTORE", "r", ttl, payload), status=1)
    assert "command 2 at byte" in told
    assert f"RESTORE: ERR {problem}" in told
    assert [one["key"] for one in objects("streams", "s")[:-1]] == ["k"]


def test_annotations_are_passed_over_and_quotes_are_read_as_redis_reads_them() -> None:
    Path("a.aof").write_bytes(
        b'#TS:1718004800\r\nXADD k 1-0 note "two \\"words\\"\\n\\x41" other \'it\\\'s\'\r\n'
    )
    run("load", "s", "a.aof")
    (entry, _) = objects("range", "s", "k")
    assert entry["fields"] == [["note", 'two "words"\nA'], ["other", "it's"]]
    Path("b.aof").write_bytes(b'XADD k 2-0 a "b\r\n')
    told = run("load", "s", "b.aof", status=1).stderr
    assert "a quote is not closed" in told


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("EVAL return 0", "EVAL: what a script changes is not known here"),
        ("XREADGROUP GROUP g c STREAMS k >", "XREADGROUP: it delivers entries to a client"),
        ("XNEW k 1-0", "XNEW: an unknown command, which may change streams"),
        ("SWAPDB 0 1", "SWAPDB: it brings keys from another database"),
        (b'1339518083.1 [0 lua] "del" "k"\r\n', "a line of MONITOR"),
        ("XDELEX k IDS 2 1-0", "`numids` parameter must match the number of arguments"),
        ("XDELEX k KEEPREF ACKED IDS 1 1-0", "XDELEX: ERR syntax error"),
        ("XTRIM k MAXLEN = 1 BOGUS", "XTRIM: ERR syntax error"),
        (b"XADD k\n", "wrong number of arguments for 'xadd' command"),
        (b"XADD k 1-1 a\n", "wrong number of arguments for 'xadd' command"),
        ("XTRIM k MAXLEN = x", "value is not an integer or out of range"),
        ("XNACK k g FAIL 1-1", "wrong number of arguments for 'xnack' command"),
        ("XSETID k 1-1 BOGUS 1", "XSETID: ERR syntax error"),
        ("MOVE k", "wrong number of arguments for 'move' command"),
        ("MSETEX x k v", "value is not an integer or out of range"),
    ],
)
def test_what_may_change_streams_and_cannot_be_run_ends_the_load(
    command: str | bytes, problem: str
) -> None:
    told = load(*FIVE, command, "DEL k", status=1)
    assert "command 6 at byte" in told
    assert problem in told
    assert "next: --from-line 6" in told
    assert len(ids("k")) == 5


@pytest.mark.parametrize("command", ["MOVE k 0", "COPY a k DB 0 REPLACE", "SWAPDB 3 0"])
def test_what_comes_from_another_database_is_refused(command: str) -> None:
    told = load("SELECT 3", command, status=1)
    assert "only database 0 is loaded" in told


def test_flushall_in_another_database_empties_this_one() -> None:
    load(*FIVE, "SELECT 3", "SET k v", "FLUSHALL")
    assert lines("streams", "s") == []


@pytest.mark.parametrize("start", [b"REDIS0011\xfa\r\n", b"VALKEY080\xfa\r\n"])
def test_an_rdb_file_before_commands_is_named(start: bytes) -> None:
    told = load(start, *FIVE, status=1)
    assert "a.aof: it begins as an RDB file, not with a command; nothing was loaded" in told
    assert "next: --format rdb loads an RDB file; if commands follow in it (aof-use-rdb-" in told
    assert told == load(start, *FIVE, status=1, options=("--from-line", "2"))


def test_skip_passes_over_all_commands_of_a_name() -> None:
    told = load(*FIVE, "EVAL return 0", "XNEW k", options=("--skip", "eval", "--skip", "XNEW"))
    assert "dropped: command EVAL" in told
    assert len(ids("k")) == 5
    run("load", "s", "k", "x.csv", "--skip", "DEL", status=2)


def test_from_line_knows_the_database_that_was_selected_before() -> None:
    told = load("SELECT 3", "XADD k 1-0 a b", "XADD k 2-0 a b", options=("--from-line", "3"))
    assert "dropped: command for database 3" in told
    assert not Path("s").exists() or lines("streams", "s") == []


def test_commands_rebuild_what_commands_can() -> None:
    fill()
    result = run("dump", "s", "--format", "resp", "--output", "out.resp", "--redis", "8.10")
    assert "dropped: pending entry that is no longer in the stream" in result.stderr
    assert "dropped: time of a consumer (2 times)" in result.stderr
    result = run("load", "copy", "out.resp")
    assert "commands, " in result.stderr
    assert differences("s", "copy") == ["consumer \\xfe", "consumer c1", "pending 4-0"]
    run("dump", "s", "--format", "resp", "--output", "old.resp", "--redis", "7.0")
    run("load", "old", "old.resp")
    with streamkeep.open("old", readonly=True) as store:
        group = store.xinfo_stream("k", full=True, count=0)["groups"][0]
        assert [one["name"] for one in group["consumers"]] == [b"c1", b"nobody", b"\xfe"]


def test_an_append_only_file_is_replayed() -> None:
    commands = [
        "SELECT 0",
        "XADD k MAXLEN ~ 1000 1-1 a 1",
        "XADD k MAXLEN = 3 2-0 a 2",
        "XADD k NOMKSTREAM 3-0 a 3",
        "XADD k MINID = 2 4-0 a 4",
        "MULTI",
        "XDEL k 3-0",
        "EXEC",
        "XGROUP CREATE k g 0 MKSTREAM ENTRIESREAD 0",
        "XGROUP CREATECONSUMER k g c",
        "XCLAIM k g c 0 2-0 TIME 1000 RETRYCOUNT 3 FORCE JUSTID LASTID 2-0",
        "XCLAIM k g c 0 4-0 IDLE 5 FORCE JUSTID",
        "XNACK k g FATAL IDS 1 4-0 RETRYCOUNT 2",
        "XGROUP SETID k g 4-0 ENTRIESREAD 4",
        "XADD gone 1-0 a b",
        "UNLINK gone",
        "XADD old 1-0 a b",
        "RENAME old new",
        "XADD new 2-0 a b",
        "XTRIM new MAXLEN = 1",
        "XTRIM new MINID ~ 1 LIMIT 10",
        "XACK new g 1-0",
        "XGROUP CREATE new tmp $",
        "XGROUP DELCONSUMER new tmp c",
        "XGROUP DESTROY new tmp",
        "XSETID new 9-0 ENTRIESADDED 7 MAXDELETEDID 1-0",
        "XCFGSET new IDMP-DURATION 50 IDMP-MAXSIZE 20",
        "XIDMPRECORD new p m 2-0",
        "SELECT 3",
        "XADD elsewhere 1-0 a b",
    ]
    Path("a.aof").write_text("\r\n".join(commands) + "\r\n")
    result = run("load", "s", "a.aof")
    assert result.stderr.startswith("a.aof: 30 commands, ")
    assert "dropped: command for database 3" in result.stderr
    with streamkeep.open("s", readonly=True) as store:
        assert store.keys() == [b"k", b"new"]
        assert [one.id for one in store.xrange("k")] == [b"2-0", b"4-0"]
        group = store.xinfo_stream("k", full=True)["groups"][0]
        assert group["entries-read"] == 4
        assert group["pending"] == [[b"2-0", b"c", 1000, 3], [b"4-0", b"", 0, 2]]
        info = store.xinfo_stream("new")
        assert (info["entries-added"], info["last-generated-id"]) == (7, b"9-0")
        assert (info["idmp-duration"], info["iids-added"]) == (50, 1)
