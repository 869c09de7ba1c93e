"""dump of whole streams: every format, there and back."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import streamkeep
from cli_runner import lines, reply, run
from conftest import assert_sound
from dumped_stores import LOSSLESS, differences, fill, keys_of
from model.profile import configured
from raw_store import raw_store
from redis_parts import stream_parts
from streamkeep import transfer
from streamkeep.commands.strings import set_deadline
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import files
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.format.core.keys import GROUPS, ROWS
from streamkeep.format.redis.stream_dump import EXPIRY_LOSS, READ_LOSS
from streamkeep.format.redis.stream_parts import Part
from streamkeep.format.rows.extension import RETENTION, with_section
from streamkeep.jobs import Queue
from streamkeep.transfer.differences import diff
from streamkeep.transfer.dump_file import MESSAGES_LOSS, ROW_LOSS
from streamkeep.transfer.formats import DUMP_FORMATS
from streamkeep.transfer.loading.staged import Load

pytestmark = pytest.mark.usefixtures("sound_folder")


@given(st.dictionaries(st.binary(max_size=3), stream_parts(), max_size=3))
@configured(25)
def test_any_store_comes_back_from_every_lossless_format(streams: dict[bytes, list[Part]]) -> None:
    with tempfile.TemporaryDirectory(prefix="streamkeep-") as folder:
        first = Path(folder, "s")
        with Store(first, sync="none") as store, Load(store) as load:
            for key, parts in streams.items():
                incoming = load.begin(key, "test")
                assert incoming is not None
                for part in parts:
                    incoming.take(part)
            assert load.publish() == len(streams)
        assert_sound(first)
        for kind in LOSSLESS:
            out, copy = Path(folder, "out"), Path(folder, kind)
            run("dump", first, "--format", kind, "--output", out, "--overwrite", "--redis", "8.10")
            run("load", copy, out, "--format", kind, "--sync", "none")
            with Store(first, readonly=True) as a, Store(copy, readonly=True) as b:
                assert list(diff(a, b)) == []
            assert_sound(copy)


def test_csv_and_parquet_carry_the_entries() -> None:
    fill()
    for kind in ("csv", "parquet"):
        run("dump", "s", "--output", f"out.{kind}")
        result = run("load", kind, f"out.{kind}")
        assert f"out.{kind}: 3 streams, " in result.stderr
    with streamkeep.open("s", readonly=True) as a, streamkeep.open("parquet", readonly=True) as b:
        assert {one.kind for one in diff(a, b)} == {"counter", "group", "messages", "stream"}
    with streamkeep.open("csv", readonly=True) as store:
        assert store.xrange(b"\xff\x00") == [(b"5-5", {b"a": b"\xfe", b"z": b'1,\n"2"'})]
        assert store.xlen("k") == 296


def test_a_table_has_a_column_for_each_field_or_those_that_were_asked_for() -> None:
    fill()
    rows = list(csv.reader(io.StringIO("\n".join(lines("dump", "s", "k", "--format", "csv")))))
    assert rows[0] == ["stream", "id", "n", "pad", "m"]
    assert rows[2] == ["k", "2-0", "2", "xx", ""]
    assert len(rows) == 297
    found = lines("dump", "s", "k", "--format", "csv", "--field", "m", "--start", "299-0")
    assert found[0] == "stream,id,m"
    assert found[1].endswith(",1")


@given(st.lists(st.lists(st.binary(min_size=1, max_size=4), min_size=2, max_size=3), min_size=1))
@example(rows=[[b"\\\\", b"a"], [b"\\x41", b"\0"]])  # keys that lakes show in another form
@configured(25)
def test_any_bytes_come_back_from_csv_and_commands(rows: list[list[bytes]]) -> None:
    with tempfile.TemporaryDirectory(prefix="streamkeep-") as folder:
        path, out = Path(folder, "s"), Path(folder, "out")
        with streamkeep.open(path, sync="none") as store:
            for number, values in enumerate(rows, 1):
                fields = {b"%d" % place: value for place, value in enumerate(values)}
                store.xadd(values[0], fields, id=f"{number}-0")
            expected = {key: store.xrange(key) for key in store.scan_iter()}
        for kind in ("csv", "resp", "parquet"):
            run("dump", path, "--format", kind, "--output", out, "--overwrite")
            run("load", Path(folder, kind), out, "--format", kind, "--sync", "none")
            with streamkeep.open(Path(folder, kind), readonly=True) as store:
                assert {key: store.xrange(key) for key in store.scan_iter()} == expected


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "resp"])
def test_a_range_holds_the_entries_that_were_asked_for(kind: str) -> None:
    fill()
    options = ["--start", "10-0", "--end", "20", "--count", "5"]
    run("dump", "s", "k", "--format", kind, "--output", "out", *options)
    run("load", "copy", "out", "--format", kind)
    with streamkeep.open("copy", readonly=True) as store:
        assert [one.id for one in store.xrange("k")] == [b"%d-0" % n for n in range(10, 15)]
        assert store.xinfo_groups("k") == []


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "resp", "text"])
def test_history_holds_what_was_trimmed_while_the_stream_archived(kind: str) -> None:
    with streamkeep.open("s", sync="none", node_max_entries=10) as store:
        store.set_retention("k", archive=True)
        for number in range(1, 101):
            store.xadd("k", {"n": number}, id=f"{number}-0")
        store.xtrim("k", maxlen=60, approximate=False)
        store.archive()
        store.xdel("k", "50-0")
        store.xtrim("k", maxlen=35, approximate=False)
    run("dump", "s", "--format", kind, "--output", "live")
    run("dump", "s", "--format", kind, "--output", "all", "--history")
    options = ["--start", "35-0", "--end", "70-0", "--count", "20"]
    run("dump", "s", "--format", kind, "--output", "some", "--history", *options)
    if kind == "text":
        assert Path("all").read_text().count(" n=") == 99
        return
    for name, wanted in (
        ("live", list(range(66, 101))),
        ("all", [*range(1, 50), *range(51, 101)]),
        ("some", [*range(35, 50), *range(51, 56)]),
    ):
        run("load", f"{name}.store", name, "--format", kind)
        with streamkeep.open(f"{name}.store", readonly=True) as store:
            assert [one.id for one in store.xrange("k")] == [b"%d-0" % n for n in wanted]
    if kind == "jsonl":
        found = differences("s", "live.store")
        assert found == []
    assert "are not for rdb" in run("dump", "s", "--format", "rdb", "--history", status=2).stderr


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "resp"])
@pytest.mark.parametrize("deleted", [False, True])
def test_history_is_whole_where_no_entry_is_live(kind: str, deleted: bool) -> None:
    with streamkeep.open("s", sync="none") as store:
        store.set_retention("k", archive=True)
        store.xadd_many("k", [{"n": n} for n in range(9)], [f"{n}-0" for n in range(1, 10)])
        if deleted:
            store.xdel("k", "9-0")
        store.xtrim("k", maxlen=0, approximate=False)
        history = store.xrange("k", history=True)
    assert len(history) == 9 - deleted
    run("dump", "s", "--format", kind, "--output", "all", "--history")
    run("load", "copy", "all", "--format", kind)
    with streamkeep.open("copy", readonly=True) as store:
        assert store.xrange("k") == history


def test_retention_comes_back_from_json_lines_and_is_named_elsewhere() -> None:
    with streamkeep.open("s") as store:
        store.xadd("k", {"n": 1}, id="1-0")
        store.set_retention("k", maxlen=5, archive=True, when_full="trim")
    run("dump", "s", "--output", "a.jsonl")
    run("load", "t", "a.jsonl")
    with streamkeep.open("s", readonly=True) as a, streamkeep.open("t", readonly=True) as b:
        assert a.retention("k") == b.retention("k")
        assert list(diff(a, b)) == []
    text = Path("a.jsonl").read_text()
    for new in ('"maxlen":-5', '"maxlen":"5"', '"bogus":1'):
        Path("b.jsonl").write_text(text.replace('"maxlen":5', new))
        assert "not a line of a dump" in run("load", "u", "b.jsonl", status=1).stderr
    Path("cut.jsonl").write_text("\n".join(text.splitlines()[:-1]))
    assert "cut off" in run("load", "t", "cut.jsonl", "--existing", "replace", status=1).stderr
    Path("cut.jsonl").write_text("\n")
    assert "cut.jsonl: it is empty: a dump" in run("load", "t", "cut.jsonl", status=1).stderr
    assert keys_of("t") == [b"k"]
    for kind, server in product(("rdb", "dump", "resp"), ("8.6", "8.10")):
        result = run(
            "dump", "s", "--format", kind, "--output", "out", "--overwrite", "--redis", server
        )
        assert "dropped: retention of a stream" in result.stderr
        assert "keeps more" not in result.stderr
    run("load", "u", "out", "--format", "resp")
    assert "! stream 'k' retention maxlen: 5 against none" in lines("diff", "s", "u", status=7)


def test_bytes_that_are_not_text_stand_in_base64() -> None:
    with streamkeep.open("t") as store:
        store.xadd("k", [(b"\xff", "a"), ("b", b"\x80"), ("b", "é")], id="1-1")
    found = [json.loads(line) for line in lines("dump", "t")]
    assert [one["type"] for one in found] == ["dump", "stream", "entry", "summary"]
    assert found[2]["fields"] == [[{"base64": "/w=="}, "a"], ["b", {"base64": "gA=="}], ["b", "é"]]
    assert found[3] == {"type": "summary", "command": "dump", "streams": 1, "entries": 1}


def test_text_is_for_people() -> None:
    fill()
    found = lines("dump", "s", "--format", "text")
    assert "stream 'k'" in found
    assert "  1-0  n=1 pad=x" in found
    assert '    consumer "\\xfe"' in found
    assert "    nobody" in found


def test_a_payload_of_one_stream_is_what_redis_returns() -> None:
    fill()
    data = run("dump", "s", "k", "--format", "dump", "--redis", "8.8").stdout_bytes
    with streamkeep.open("s", readonly=True) as store:
        assert data == store.dump("k", "8.8")
    Path("k.dump").write_bytes(data)
    run("load", "copy", "other", "k.dump")
    assert reply("copy", "XLEN", "other") == reply("s", "XLEN", "k")
    result = run("load", "copy", "k.dump", status=1)
    assert "a payload does not name its stream" in result.stderr


def test_compressed_files_are_read_too() -> None:
    fill()
    for kind in ("jsonl", "rdb"):
        run("dump", "s", "--output", f"a.{kind}", "--redis", "8.10")
        Path(f"a.{kind}.gz").write_bytes(gzip.compress(Path(f"a.{kind}").read_bytes()))
        run("load", kind, f"a.{kind}.gz")
        assert differences("s", kind) == []


def test_an_output_file_appears_only_when_it_is_whole() -> None:
    fill()
    Path("a.csv").write_text("former")
    with streamkeep.open("s") as store:
        store.xadd("wide", {str(number): 1 for number in range(20_000)})
    result = run("dump", "s", "--output", "a.csv", "--overwrite", status=1)
    assert "16,384 names of fields" in result.stderr
    assert Path("a.csv").read_text() == "former"
    assert sorted(one.name for one in Path().iterdir()) == ["a.csv", "s"]


def test_a_dump_to_a_link_writes_the_file_that_it_names() -> None:
    fill()
    Path("folder").mkdir()
    Path("link.csv").symlink_to("folder/a.csv")
    for more in ([], ["--overwrite"]):
        run("dump", "s", "--output", "link.csv", *more)
        assert Path("link.csv").is_symlink()
        assert [one.name for one in Path("folder").iterdir()] == ["a.csv"]
    Path("loop.csv").symlink_to("loop.csv")
    told = run("dump", "s", "--output", "loop.csv", status=1).stderr
    assert "loop.csv: Too many levels of symbolic links" in told
    assert Path("loop.csv").is_symlink()


def test_other_files_are_written_in_place_of_a_link_to_them(tmp_path: Path) -> None:
    victim, planted = tmp_path / "victim", tmp_path / "planted"
    victim.write_text("mine")
    planted.symlink_to(victim)
    with files.replacing(planted) as out:
        out.write(b"new")
    assert not planted.is_symlink()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("handles", ["/proc/self/fd", "/no/such/folder"])
def test_a_file_has_no_name_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handles: str
) -> None:
    """A dump that was killed left a hidden file of any size."""
    monkeypatch.setattr(files, "_HANDLES", handles)
    with files.replacing(tmp_path / "a") as out:
        out.write(b"new")
        assert len(list(tmp_path.iterdir())) == (handles == "/no/such/folder")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"new")]


def test_a_dump_follows_no_link_that_the_kernel_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill()
    link = Path("link.csv").absolute()
    link.symlink_to("a.csv")
    look = os.stat

    def forbid(path: Any, **how: Any) -> os.stat_result:
        if str(path).endswith("link.csv") and how.get("follow_symlinks", True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, **how)

    monkeypatch.setattr(os, "stat", forbid)
    assert "link.csv" in run("dump", "s", "--output", link, status=1).stderr
    assert not Path("a.csv").exists()


@pytest.mark.parametrize("kind", DUMP_FORMATS)
def test_a_dump_counts_what_it_does_not_hold(kind: str) -> None:
    with streamkeep.open("s") as store:
        Queue(store, "mails").put("later", delay=1000)
        store.row_put("space", b"key", b"value")
        rows = len(store.row_range("space")) + len(store.row_range("mails"))
        store.xadd("ending", {"a": 1}, idmp=("p", "m"))
        store.xgroup_create("ending", "g")
        store.xgroup_create("empty", "g", mkstream=True)
        store.xcfgset("empty", idmp_duration=5)
        with store.transaction() as transaction:
            set_deadline(transaction.txn, b"ending", 1 << 42)
        store.row_put("redis.deadlines", b"damaged", b"")
    dropped = transfer.dump("s", "out", format=kind).dropped  # type: ignore[arg-type]
    assert dropped[ROW_LOSS] > rows
    assert dropped[EXPIRY_LOSS] == 1
    assert dropped.get(MESSAGES_LOSS) == (2 if kind in ("csv", "parquet", "text") else None)
    if kind in ("csv", "parquet"):
        keys = ("ending", "empty")
        dropped = transfer.dump("s", f"two.{kind}", keys=keys).dropped
        two = {"consumer group": 2, "stream without live entries": 1, MESSAGES_LOSS: 2}
        assert dropped == {EXPIRY_LOSS: 1, **two}
    some = {EXPIRY_LOSS: 1, "consumer group": 1, MESSAGES_LOSS: 1}
    for part in "jsonl", "resp":
        report = transfer.dump("s", "one", format=part, keys="ending", count=1, overwrite=True)
        assert report.dropped == some
    assert transfer.dump("s", "none", format="jsonl", keys=()).dropped == {}


def test_a_dump_without_groups_and_rows_counts_them_also_where_they_are_damaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "damaged" / "s"
    path.parent.mkdir()
    with streamkeep.open(path) as store:
        store.xadd("k", {"a": 1})
        store.xgroup_create("k", "g")
        store.row_put("redis.deadlines", (1).to_bytes(8, "big"), b"")
        with store.transaction() as transaction:
            record = existing_stream(transaction.txn, b"k").record
            record.extension = with_section(record.extension, RETENTION, b"damaged")
    with raw_store(path) as raw:
        raw.flip_bit(GROUPS, *raw.keys(GROUPS))
        raw.flip_bit(ROWS, *raw.keys(ROWS))
    held = {EXPIRY_LOSS: 1, "consumer group": 1}
    table = transfer.dump(path, "a.csv").dropped
    assert table == {**held, "retention of a stream": 1}
    assert transfer.dump(path, "a.text", format="text", count=1).dropped == held


def test_what_older_servers_cannot_hold_is_listed() -> None:
    with streamkeep.open("s") as store:
        store.xadd("settings", {"a": 1}, id="1-0")
        store.xcfgset("settings", idmp_duration=5)
        store.xgroup_create("settings", "g", 0, entries_read=1)
        store.xgroup_create("empty", "g", 0, mkstream=True)
        store.xadd_many("ahead", [{"a": 1}] * 2, ["1-0", "2-0"])
        store.xgroup_create("ahead", "g", "1-0", entries_read=2)
        store.xreadgroup("g", "ann", {"ahead": ">"}, count=1)  # 3 are read now, of 2
    settings = "stream without its settings of idempotent XADD"
    added = "stream without its max_deleted_id and entries_added"
    above = "entries_read of a group that is above entries_added"
    for kind in ("resp", "rdb", "dump"):
        old = transfer.dump("s", f"old.{kind}", redis="5.0").dropped
        assert old[READ_LOSS] == 2
        assert old[settings] == 1
        assert (added in old) == (kind == "resp")  # the empty stream is made of an entry
        new = transfer.dump("s", f"new.{kind}", redis="8.10").dropped
        assert (above in new, settings in new) == (kind == "resp", False)


def test_parquet_names_what_helps_where_an_id_is_too_large_for_its_column() -> None:
    with streamkeep.open("s") as store:
        store.xadd("late", {"f": "v"}, id=f"{1 << 63}-1")
        store.xadd("many", {"f": "v"}, id=f"5-{1 << 63}")
    for key, column, *more in ("late", "ms"), ("late", "ts", "--field", "f"), ("many", "seq"):
        told = run("dump", "s", key, "--output", "a.parquet", *more, status=1).stderr
        assert f"too large for column '{column}'" in told
        helps = "--field leaves out seq, and --errors null makes a time null; jsonl and csv have"
        assert f"next: {helps} every ID" in told
    run("dump", "s", "--output", "a.parquet", "--field", "f", "--errors", "null")
    run("dump", "s", "many", "--output", "b.parquet", "--field", "f")
    run("dump", "s", "--output", "a.csv")
    with pytest.raises(streamkeep.ArgumentError, match="types must be a dict of columns and types"):
        transfer.dump("s", "c.parquet", fields=["f"], types=b"f")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_standard_output_gets_the_same_bytes_as_a_file(kind: str) -> None:
    fill()
    printed = run("dump", "s", "--format", kind).stdout_bytes
    run("dump", "s", "--output", f"out.{kind}")
    assert printed == Path(f"out.{kind}").read_bytes()
