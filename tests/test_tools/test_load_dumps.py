"""load of whole dumps: all of a file or nothing; and how much memory loading takes."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, reply, run
from conftest import assert_sound
from dumped_stores import differences, fill, keys_of
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.format.redis.rdb_values import crc64
from streamkeep.format.redis.stream_dump import read_payload
from streamkeep.format.rows.retention import NO_RETENTION
from streamkeep.transfer.formats import UNNAMED
from streamkeep.transfer.loading.staged import Load

pytestmark = pytest.mark.usefixtures("sound_folder")

LAST = "the last line"


def test_lines_of_several_streams_are_not_mixed() -> None:
    run("add", "s", "a", "n", "1", "--id", "1-0")
    run("add", "s", "\xfe", "n", "2", "--id", "2-0")
    printed = "".join(
        line.replace('"entry",', f'"entry","key":"{key}",') + "\n"
        for key in ("a", "\xfe")
        for line in lines("range", "s", key, "--json")
    )
    run("load", "t", "\xfe", "--format", "jsonl", "-", input=printed)
    assert lines("range", "t", "\xfe") == ["2-0  n=2"]
    result = run("load", "t", "c", "--format", "jsonl", "-", input=printed, status=1)
    assert "standard input: no stream 'c' in it; there is 'a', " in result.stderr


def test_one_stream_of_a_file_can_be_chosen_and_all_that_was_loaded_is_counted() -> None:
    fill()
    for kind in ("jsonl", "rdb"):
        run("dump", "s", "--output", f"a.{kind}", "--redis", "8.10")
        *_, summary = objects("load", kind, "limited", f"a.{kind}")
        assert (summary["streams"], summary["entries"]) == (1, 1)
        assert keys_of(kind) == [b"limited"]
        assert "no stream 'nix' in it" in run("load", kind, "nix", f"a.{kind}", status=1).stderr
        *_, summary = objects("load", kind, f"a.{kind}", "--existing", "skip")
        assert (summary["streams"], summary["skipped"]) == (3, 1)
        assert summary["entries"] == objects("streams", kind)[-1]["entries"] - 1


def test_streams_that_exist_are_kept_skipped_or_replaced() -> None:
    fill()
    run("dump", "s", "--output", "a.jsonl")
    run("add", "t", "k", "f", "v", "--id", "1-0")
    result = run("load", "t", "a.jsonl", status=1)
    told, following = result.stderr.splitlines()  # once
    assert told.endswith("stream 'k' exists in the store; nothing was loaded")
    assert following.startswith("next: --existing skip")
    assert lines("range", "t", "k") == ["1-0  f=v"]
    assert len(lines("streams", "t")) == 2
    result = run("load", "t", "a.jsonl", "--existing", "skip")
    assert "3 streams, 1 skipped" in result.stderr
    assert lines("range", "t", "k") == ["1-0  f=v"]
    run("load", "t", "a.jsonl", "--existing", "replace")
    assert differences("s", "t") == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (LAST, "", "cut off: a summary line is expected"),
        (
            LAST,
            '{"type":"summary","command":"dump","streams":9,"entries":9}',
            "the summary counts 9",
        ),
        (LAST, "not json", "not JSON"),
        (LAST, '{"type":"pending"}', "a pending line, where a summary line is expected"),
        (LAST, "[]", "an object with a 'type' is expected"),
        *(
            ('[["a","1"]]', wrong, "a.jsonl line")
            for wrong in ('{"ab":1}', '["ab"]', '[["a"],["b","c","d"]]', "[]")
        ),
        ('"id":"6-0"', '"id":"5-0"', "line 9: the ID is not above the one before"),
        ('"fields":[["n","6"]', '"fields":[["n"]', "line 9: not a line of a dump"),
        ('"length":296', '"length":295', "the length is 295"),
        ('"entries_added":300', '"entries_added":1', "entries_added is 1"),
        ('"consumer":"c1"', '"consumer":"c9"', "not a line of a dump"),
        ('"pending":65', '"pending":66', "where a pending line is expected"),
        ('"duration_s":100', '"duration_s":0', "idmp-duration is 0"),
        ('"version":1', '"version":2', "a dump of version 2"),
        ('"delivery_count":1', '"delivery_count":-1', "not a number"),
        ('"last_generated_id":"0-0"', '"last_generated_id":"x-0"', "Invalid stream ID"),
    ],
)
def test_a_dump_that_is_damaged_or_contradicts_itself_loads_nothing(
    old: str, new: str, problem: str
) -> None:
    """Also not into the archive, as streams that are deleted."""
    fill()
    with streamkeep.open("s") as store, streamkeep.open("t"):
        store.set_retention("k", archive=True, archive_deleted=True)
    *_, last = found = lines("dump", "s")
    text = "\n".join(found)
    old = last if old == LAST else old
    assert old in text
    Path("a.jsonl").write_text(text.replace(old, new, 1))
    result = run("load", "t", "a.jsonl", status=1)
    assert problem in result.stderr
    assert "nothing was loaded" in result.stderr
    with streamkeep.open("t") as store:
        assert (store.archive().entries, store.keys()) == (0, [])


def test_a_dump_with_the_mark_of_utf_8_is_one_with_and_without_a_key() -> None:
    fill()
    run("dump", "s", "--output", "a.jsonl")
    Path("a.jsonl").write_bytes(b"\xef\xbb\xbf" + Path("a.jsonl").read_bytes())
    run("load", "t", "a.jsonl")
    assert differences("s", "t") == []
    run("load", "u", "k", "a.jsonl")
    assert keys_of("u") == [b"k"]


def test_a_loaded_stream_follows_no_server() -> None:
    """The dump of a store that follows a Redis could not be loaded."""
    with streamkeep.open("s") as store, store.transaction() as transaction:
        transaction.xadd("k", {"a": 1})
        stream = existing_stream(transaction.txn, b"k")
        stream.set_retention(NO_RETENTION._replace(archive=True, follows=True))
    run("dump", "s", "--output", "a.jsonl")
    run("load", "t", "a.jsonl")
    with streamkeep.open("t") as store:
        assert store.retention("k") == NO_RETENTION._replace(archive=True)


def test_what_is_dropped_is_listed() -> None:
    fill()
    run("dump", "s", "--output", "a.rdb", "--redis", "8.10")
    data = Path("a.rdb").read_bytes()[:-9]
    other = b"\x00\x01x\x01y" + b"\x04\x01h\x01\x01f\x01v" + b"\xff"
    body = data + other
    Path("b.rdb").write_bytes(body + crc64(body).to_bytes(8, "little"))
    result = run("load", "t", "b.rdb")
    assert "dropped: hash\ndropped: string\n" in result.stderr
    summary = objects("load", "t2", "b.rdb")[-1]
    assert summary["dropped"] == {"hash": 1, "string": 1}
    assert summary["streams"] == 4
    result = run("dump", "s", "--output", "old.rdb", "--redis", "7.0")
    told = "dropped: unowned pending entry, now owned by consumer 'nobody' (2 times)"
    assert told in result.stderr
    assert "next: --redis 8.10 keeps more" in result.stderr


def test_a_file_of_several_databases() -> None:
    stream = b"\x15" + b"\x01a" + bytes(10)
    body = b"REDIS0011\xfe\x00" + stream + b"\xfe\x02" + stream + b"\xff"
    Path("a.rdb").write_bytes(body + crc64(body).to_bytes(8, "little"))
    result = run("load", "t", "a.rdb", status=1)
    assert "stream 'a' is repeated" in result.stderr
    assert "next: --db N takes one of several databases" in result.stderr
    result = run("load", "t", "a.rdb", "--db", "2")
    assert "1 stream, 0 entries" in result.stderr


def test_what_a_killed_load_left_is_told_and_can_be_dropped() -> None:
    with streamkeep.open("s") as store:
        store.xadd("k", {"a": "b"})
        payload = store.dump("k")
        store.delete("k")
        assert payload is not None
        load = Load(store)
        incoming = load.begin(b"k", "test")
        assert incoming is not None
        incoming.take(next(iter(read_payload(payload, "test"))))
        incoming._flush()
        left = store.keys()
        assert len(left) == 1
        assert left[0].startswith(UNNAMED)
    assert_sound(Path("s"))  # else there would be no backup while a load is running
    fill("t")
    run("dump", "t", "--output", "a.jsonl")
    result = run("load", "s", "a.jsonl")
    assert "1 stream of loads that are running or were killed" in result.stderr
    result = run("dump", "s", "--output", "b.jsonl")
    assert "left out: 1 stream of loads" in result.stderr
    run("load", "again", "b.jsonl")
    assert differences("again", "t") == []
    reply("s", "DEL", left[0])
    assert differences("s", "t") == []


@pytest.mark.parametrize("kind", ["jsonl", "resp"])
def test_a_stream_that_has_more_history_than_was_added_to_it_comes_back(kind: str) -> None:
    with streamkeep.open("s") as store:
        store.set_retention("k", archive=True)
        store.xadd_many("k", [{"n": str(n)} for n in range(100)], [f"{n}-0" for n in range(1, 101)])
        store.xtrim("k", maxlen=10, approximate=False)
        store.archive()
        store.xsetid("k", "100-0", entries_added=20)
    run("dump", "s", "k", "--history", "--output", f"all.{kind}")
    run("load", "t", f"all.{kind}")
    with streamkeep.open("t") as store:
        assert store.xlen("k") == 100


BOMB_MIB = 500
MOST_MIB = 450  # of which an interpreter with all modules takes less than 150


def limited() -> None:
    """Let a child have no more data than that."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MIB << 20, MOST_MIB << 20))


@pytest.mark.parametrize(
    ("name", "start", "piece", "args"),
    [
        ("a.jsonl", b'{"a":"', b"x", ("k",)),
        ("a.csv", b"a\n", b"x", ("k",)),
        pytest.param("a.jsonl", b'{"type":"dump",', b" ", (), marks=pytest.mark.slow),
        pytest.param("a.csv", b'a\n"', b"x\n", ("k",), marks=pytest.mark.slow),
        pytest.param("a.csv", b"stream,id,a\nk,1-0,", b"y", (), marks=pytest.mark.slow),
    ],
)
def test_a_line_without_an_end_costs_bounded_memory(
    tmp_path: Path, name: str, start: bytes, piece: bytes, args: tuple[str, ...]
) -> None:
    file = tmp_path / f"{name}.gz"
    mib = gzip.compress(piece * ((1 << 20) // len(piece)))
    file.write_bytes(gzip.compress(start) + mib * BOMB_MIB)
    words = [sys.executable, "-m", "streamkeep", "load", str(tmp_path / "s"), *args, str(file)]
    done = subprocess.run(words, capture_output=True, check=False, preexec_fn=limited)
    assert done.returncode == 1, done.stderr
    assert b"longer than 16.0 MiB, the limit of a line" in done.stderr
    assert not (tmp_path / "s").exists()
