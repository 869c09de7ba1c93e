"""dump and load of whole streams, and diff: every format there and back."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkeep
from cli_runner import lines, objects, run, start
from conftest import ROOT, assert_sound
from model.profile import configured
from patience import wait_until
from redis_parts import stream_parts
from streamkeep.engine.api.store import Store
from streamkeep.format.redis.crc64 import crc64
from streamkeep.format.redis.stream_parts import Part
from streamkeep.recovery.diff import diff
from streamkeep.transfer.formats import UNNAMED
from streamkeep.transfer.loading.staged import Load

LOSSLESS = ("jsonl", "dump", "rdb")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory; every store in it must be sound when the test ends."""
    monkeypatch.chdir(tmp_path)
    yield
    for data in tmp_path.glob("*/data.mdb"):
        assert_sound(data.parent)


def fill(path: str = "s") -> None:
    """Make a store with all that a store may hold."""
    with streamkeep.open(path, sync="none") as store:
        for number in range(1, 300):
            store.xadd("k", {"n": number, "pad": "x" * (number % 60)}, id=f"{number}-0")
        odd: list[tuple[str, str | bytes]] = [
            ("a", "1"),
            ("a", b"\xfe"),
            ("", ""),
            ("z", '1,\n"2"'),
        ]
        store.xadd(b"\xff\x00", odd, id="5-5")
        store.xdel("k", "7-0", "8-0", "299-0")
        store.xgroup_create("k", "g", 0)
        store.xreadgroup("g", "c1", {"k": ">"}, count=60)
        store.xreadgroup("g", b"\xfe", {"k": ">"}, count=5)
        store.xnack("k", "g", "FAIL", "3-0", "2-0")
        store.xdel("k", "4-0")
        store.xgroup_create("k", "idle", "$")
        store.xadd("k", {"m": 1}, idmp=("p", b"\xfd"))
        store.xgroup_create("empty", "g", 0, mkstream=True)
    with streamkeep.open(path, node_max_entries=10) as store:
        store.xadd("limited", {"a": 1}, id="1-0")


def differences(one: str, other: str) -> list[str]:
    """Return what two stores differ in: kinds and keys."""
    with streamkeep.open(one, readonly=True) as a, streamkeep.open(other, readonly=True) as b:
        return sorted({f"{found.kind} {found.what}" for found in diff(a, b)})


def keys_of(path: str) -> list[bytes]:
    """Return the keys of a store, none where there is no store."""
    if not Path(path).exists():
        return []
    with streamkeep.open(path, readonly=True) as store:
        return store.keys()


# --- there and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSLESS)
def test_a_lossless_format_gives_an_equal_store(kind: str) -> None:
    fill()
    result = run("dump", "s", "--format", kind, "--output", "out", "--overwrite", "--redis", "8.10")
    assert result.stdout == ""
    assert "4 streams, " in result.stderr
    assert "dropped" not in result.stderr
    result = run("load", "copy", "out", "--format", kind)
    assert "out: 4 streams, " in result.stderr
    assert differences("s", "copy") == []
    assert run("diff", "s", "copy").stdout == ""


@given(st.dictionaries(st.binary(max_size=3), stream_parts(), max_size=3))
@configured(40)
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


def test_commands_rebuild_what_commands_can() -> None:
    fill()
    result = run("dump", "s", "--format", "resp", "--output", "out.resp", "--redis", "8.10")
    assert "dropped: pending entry that is no longer in the stream" in result.stderr
    assert "dropped: time of a consumer (2 times)" in result.stderr
    result = run("load", "copy", "out.resp")
    assert "commands, " in result.stderr
    assert differences("s", "copy") == [
        "consumer \\xfe",
        "consumer c1",
        "pending 4-0",
    ]
    run("dump", "s", "--format", "resp", "--output", "old.resp", "--redis", "7.0")
    run("load", "old", "old.resp")
    with streamkeep.open("old", readonly=True) as store:
        group = store.xinfo_stream("k", full=True, count=0)["groups"][0]
        assert [one["name"] for one in group["consumers"]] == [b"c1", b"nobody", b"\xfe"]


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
@configured(60)
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


def test_standard_output_and_input() -> None:
    fill()
    for kind in (*LOSSLESS, "resp"):
        data = run("dump", "s", "--format", kind, "--redis", "8.10").stdout_bytes
        run("load", kind, "-", "--format", kind, input=data)
    assert differences("s", "rdb") == differences("s", "jsonl") == []


def test_a_payload_of_one_stream_is_what_redis_returns() -> None:
    fill()
    data = run("dump", "s", "k", "--format", "dump", "--redis", "8.8").stdout_bytes
    with streamkeep.open("s", readonly=True) as store:
        assert data == store.dump("k", "8.8")
    Path("k.dump").write_bytes(data)
    run("load", "copy", "other", "k.dump")
    assert lines("len", "copy", "other") == lines("len", "s", "k")
    result = run("load", "copy", "k.dump", status=1)
    assert "a payload does not name its stream" in result.stderr


def test_compressed_files_are_read_too() -> None:
    fill()
    for kind in ("jsonl", "rdb"):
        run("dump", "s", "--output", f"a.{kind}", "--redis", "8.10")
        Path(f"a.{kind}.gz").write_bytes(gzip.compress(Path(f"a.{kind}").read_bytes()))
        run("load", kind, f"a.{kind}.gz")
        assert differences("s", kind) == []
        Path(f"cut.{kind}.gz").write_bytes(Path(f"a.{kind}.gz").read_bytes()[:-50])
        result = run("load", "cut", f"cut.{kind}.gz", status=1)
        assert "nothing was loaded" in result.stderr


# --- all or nothing -----------------------------------------------------------------------------


def test_one_stream_of_a_file_can_be_chosen() -> None:
    fill()
    for kind in ("jsonl", "rdb"):
        run("dump", "s", "--output", f"a.{kind}", "--redis", "8.10")
        run("load", kind, "k", f"a.{kind}")
        assert lines("streams", kind) != []
        with streamkeep.open(kind, readonly=True) as store:
            assert store.keys() == [b"k"]
        assert "no stream 'nix' in it" in run("load", kind, "nix", f"a.{kind}", status=1).stderr


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_one_stream_of_a_table_can_be_appended(kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    for number, key in enumerate(("a", "b", "a", "b\xff")):
        run("add", "s", key, f"n{key}", str(number), "--id", f"{number}-1")
    table = f"all.{kind}"
    run("dump", "s", "--output", table)
    result = run("load", "u", "nix", table, status=1)
    assert f"{table}: no stream 'nix' in it; there is 'a', 'b', 'b\xff'" in result.stderr
    assert not Path("u").exists()
    assert "1 entry into 'b'" in run("load", "u", "b", table).stderr
    assert lines("range", "u", "b") == ["1-1  nb=1"]
    assert "2 entries into 'a'" in run("load", "u", "a", table, "--batch", "1").stderr
    assert lines("range", "u", "a") == ["0-1  na=0", "2-1  na=2"]
    assert "is not above" in run("load", "u", "a", table, status=1).stderr


def test_a_table_that_only_looks_like_a_dump_is_named_by_its_columns() -> None:
    Path("a.csv").write_text("stream,id,at\nx,1-0,2024-06-10\ny,2-0,2024-06-11\n")
    run("load", "s", "k", "a.csv", "--time", "at")
    assert lines("range", "s", "k")[0] == "1717977600000-0  stream=x id=1-0 at=2024-06-10"
    assert "no stream 'k'" in run("load", "t", "k", "a.csv", "--id", "id", status=1).stderr
    run("load", "t", "y", "a.csv", "--id", "id")
    assert lines("range", "t", "y") == ["2-0  at=2024-06-11"]


def test_lines_of_several_streams_are_not_mixed() -> None:
    run("add", "s", "a", "n", "1", "--id", "1-0")
    run("add", "s", "\xfe", "n", "2", "--id", "2-0")
    printed = run("read", "s", "a", "\xfe", "--json").stdout
    run("load", "t", "\xfe", "--format", "jsonl", "-", input=printed)
    assert lines("range", "t", "\xfe") == ["2-0  n=2"]
    result = run("load", "t", "c", "--format", "jsonl", "-", input=printed, status=1)
    assert "standard input: no stream 'c' in it; there is 'a', " in result.stderr


def test_what_is_counted_is_what_was_loaded() -> None:
    fill()
    run("dump", "s", "--output", "a.jsonl")
    run("dump", "s", "--output", "a.rdb", "--redis", "8.10")
    for kind in ("jsonl", "rdb"):
        *_, summary = objects("load", kind, "limited", f"a.{kind}")
        assert (summary["streams"], summary["entries"]) == (1, 1)
        *_, summary = objects("load", kind, f"a.{kind}", "--existing", "skip")
        assert (summary["streams"], summary["skipped"]) == (3, 1)
        assert summary["entries"] == objects("streams", kind)[-1]["entries"] - 1


def test_csv_of_entries_without_a_value_comes_back() -> None:
    run("add", "s", "k", "a", "", "b", "", "--id", "1-0")
    run("add", "s", "k", "a", "1", "b", "", "--id", "2-0")
    run("add", "s", "other", "c", "3", "--id", "3-0")
    run("dump", "s", "k", "--output", "a.csv")
    run("load", "t", "a.csv")
    assert lines("range", "t", "k") == ['1-0  a="" b=""', "2-0  a=1"]
    run("load", "u", "k", "a.csv")
    assert differences("t", "u") == []
    run("dump", "s", "--field", "c", "--output", "c.csv")
    run("load", "v", "c.csv")
    assert lines("range", "v", "k") == ['1-0  c=""', '2-0  c=""']


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("k", "a.csv", "--existing", "skip"), "--existing is for whole streams"),
        (("k", "rows.jsonl", "--existing", "refuse"), "--existing is for whole streams"),
        (("a.resp", "--existing", "replace"), "--existing is for whole streams"),
        (("k", "a.csv", "--db", "0"), "--db is for RDB files"),
        (("a.jsonl", "--db", "0"), "--db is for RDB files"),
        (("a.jsonl", "--from-line", "1"), "--from-line is for rows and commands"),
        (("k", "a.rdb", "--from-line", "9"), "--from-line is for rows and commands"),
        (("a.csv", "--batch", "5"), "--batch is for rows"),
        (("a.resp", "--sort"), "--sort is for rows"),
        (("a.jsonl", "--time", "x"), "--time is for rows"),
        (("k", "a.resp"), "leave KEY out"),
    ],
)
def test_options_of_load_that_cannot_apply(args: tuple[str, ...], message: str) -> None:
    run("add", "s", "k", "f", "v")
    for kind in ("jsonl", "rdb", "resp", "csv"):
        run("dump", "s", "--output", f"a.{kind}")
    Path("rows.jsonl").write_text('{"a":1}\n')
    assert message in run("load", "t", *args, status=2).stderr
    assert not Path("t").exists()


def test_streams_that_exist_are_kept_skipped_or_replaced() -> None:
    fill()
    run("dump", "s", "--output", "a.jsonl")
    run("add", "t", "k", "f", "v", "--id", "1-0")
    result = run("load", "t", "a.jsonl", status=1)
    assert "stream 'k' exists in the store; nothing was loaded" in result.stderr
    assert "next: --existing skip" in result.stderr
    assert lines("range", "t", "k") == ["1-0  f=v"]
    assert len(lines("streams", "t")) == 2
    result = run("load", "t", "a.jsonl", "--existing", "skip")
    assert "3 streams, 1 skipped" in result.stderr
    assert lines("range", "t", "k") == ["1-0  f=v"]
    run("load", "t", "a.jsonl", "--existing", "replace")
    assert differences("s", "t") == []


def damaged_lines() -> list[tuple[str, str]]:
    """Return what a test does to a dump, as (line to change, problem)."""
    return [
        ("", "cut off: a summary line is expected"),
        ('{"type":"summary","command":"dump","streams":9,"entries":9}', "the summary counts 9"),
        ("not json", "not JSON"),
        ('{"type":"pending"}', "a pending line, where a summary line is expected"),
        ("[]", "an object with a 'type' is expected"),
    ]


@pytest.mark.parametrize(("last", "problem"), damaged_lines())
def test_a_dump_that_is_damaged_or_cut_off_loads_nothing(last: str, problem: str) -> None:
    fill()
    found = lines("dump", "s")
    Path("a.jsonl").write_text("\n".join([*found[:-1], last]))
    result = run("load", "t", "a.jsonl", status=1)
    assert problem in result.stderr
    assert "nothing was loaded" in result.stderr
    assert keys_of("t") == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
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
def test_a_dump_that_contradicts_itself_loads_nothing(old: str, new: str, problem: str) -> None:
    fill()
    text = "\n".join(lines("dump", "s"))
    assert old in text
    Path("a.jsonl").write_text(text.replace(old, new, 1))
    result = run("load", "t", "a.jsonl", status=1)
    assert problem in result.stderr
    assert "nothing was loaded" in result.stderr
    assert keys_of("t") == []


def test_a_damaged_rdb_file_loads_nothing() -> None:
    fill()
    run("dump", "s", "--output", "a.rdb", "--redis", "8.10")
    data = bytearray(Path("a.rdb").read_bytes())
    for at in (3, 40, len(data) // 2, len(data) - 3):
        bad = data[:]
        bad[at] ^= 4
        Path("bad.rdb").write_bytes(bad)
        result = run("load", "t", "bad.rdb", status=1)
        assert "streamkeep load: bad.rdb: " in result.stderr
        assert "nothing was loaded" in result.stderr
    assert keys_of("t") == []


def test_a_file_that_is_none_leaves_no_store_behind() -> None:
    for name, data in (("a.rdb", b"REDIX"), ("a.jsonl", b"{}"), ("a.csv", b"x"), ("a.resp", b"*x")):
        Path(name).write_bytes(data)
        run("load", "t", name, status=1)
    assert not Path("t").exists()


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
    result = run("load", "t", "a.rdb", "--db", "2")
    assert "1 stream, 0 entries" in result.stderr


def test_what_a_killed_load_left_is_told_and_can_be_dropped() -> None:
    with streamkeep.open("s") as store:
        load = Load(store)
        incoming = load.begin(b"k", "test")
        assert incoming is not None
        incoming.append([(1, 1, [b"a", b"b"])])
        left = store.keys()
        assert len(left) == 1
        assert left[0].startswith(UNNAMED)
    fill("t")
    run("dump", "t", "--output", "a.jsonl")
    result = run("load", "s", "a.jsonl")
    assert "1 stream of loads that are running or were killed" in result.stderr
    result = run("dump", "s", "--output", "b.jsonl")
    assert "left out: 1 stream of loads" in result.stderr
    run("load", "again", "b.jsonl")
    assert differences("again", "t") == []
    run("remove", "s", left[0], "--yes")
    assert differences("s", "t") == []


@pytest.mark.slow
def test_a_load_that_is_killed_leaves_a_sound_store_without_the_streams() -> None:
    with streamkeep.open("big", sync="none") as store:
        for first in range(0, 200_000, 5000):
            store.xadd_many("k", [{"n": number} for number in range(first, first + 5000)])
    run("dump", "big", "--output", "a.jsonl")
    run("add", "t", "other", "f", "v")
    process = start("load", "t", "a.jsonl", "--sync", "none")
    try:
        with streamkeep.open("t", readonly=True) as store:

            def begun() -> bool:
                assert process.poll() is None
                return any(store.xlen(key) for key in store.scan_iter() if key.startswith(UNNAMED))

            wait_until(begun)
    finally:
        process.kill()
        process.communicate()
    assert [key for key in keys_of("t") if not key.startswith(UNNAMED)] == [b"other"]
    result = run("load", "t", "a.jsonl", "--sync", "none")
    assert "of loads that are running or were killed" in result.stderr
    for key in keys_of("t"):
        if key.startswith(UNNAMED):
            run("remove", "t", key, "--yes")
    assert lines("diff", "t", "big", "k") == []


def test_an_output_file_appears_only_when_it_is_whole() -> None:
    fill()
    Path("a.csv").write_text("former")
    with streamkeep.open("s") as store:
        store.xadd("wide", {str(number): 1 for number in range(20_000)})
    result = run("dump", "s", "--output", "a.csv", "--overwrite", status=1)
    assert "16,384 names of fields" in result.stderr
    assert Path("a.csv").read_text() == "former"
    assert sorted(one.name for one in Path().iterdir()) == ["a.csv", "s"]


def test_an_output_file_is_not_replaced_unasked() -> None:
    fill()
    Path("a.jsonl").write_text("former")
    assert "the file exists" in run("dump", "s", "--output", "a.jsonl", status=3).stderr
    assert Path("a.jsonl").read_text() == "former"
    run("dump", "s", "--output", "a.jsonl", "--overwrite")
    assert Path("a.jsonl").read_text() != "former"


# --- commands and tables that are not as they should be -----------------------------------------


def test_a_refused_command_ends_the_load_and_says_how_to_go_on() -> None:
    Path("a.resp").write_bytes(
        b"XADD k 1-0 a b\r\nSELECT 0\r\nXADD k 1-0 a b\r\nXADD k 2-0 a b\r\nSET x y\r\n"
    )
    result = run("load", "s", "a.resp", status=1)
    assert "a.resp: command 3 at byte 26, XADD: ERR The ID specified in XADD" in result.stderr
    assert "; 2 commands applied" in result.stderr
    assert "next: --from-line 3 resumes there; --from-line 4 leaves this" in result.stderr
    result = run("load", "s", "a.resp", "--from-line", "4")
    assert "dropped: command SET" in result.stderr
    assert lines("range", "s", "k") == ["1-0  a=b", "2-0  a=b"]


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
        assert (info["idmp-duration"], info["iids-tracked"]) == (50, 1)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"*2\r\n$4\r\nXDEL\r\n", "truncated: expected another byte"),
        (b"*9999999999\r\n", "expected a number up to"),
        (b"*1\r\n:5\r\n", "expected a string"),
        (b"*1\r\n$4\r\nXADDx\r\n", "a string is longer or shorter than its length says"),
        (b"*1\r\n$99999999\r\nx", "truncated: expected 99999999 bytes, found 1"),
        (b"x" * 70_000, "a line of more than 65536 bytes"),
        (b"XADD k\n", "the arguments are not understood"),
        (b"XADD k 1-1 a\n", "fields and values do not come in pairs"),
        (b"XTRIM k MAXLEN = x\n", "the arguments are not understood"),
        (b"XNACK k g FAIL 1-1\n", "the arguments are not understood"),
        (b"XSETID k 1-1 BOGUS 1\n", "b'BOGUS' is no option"),
    ],
)
def test_bytes_that_are_no_commands(data: bytes, problem: str) -> None:
    Path("a.resp").write_bytes(data)
    result = run("load", "s", "a.resp", status=1)
    assert problem in result.stderr
    assert "no command was applied" in result.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stream,id,a\nk,1-0,x\nk,1-0,y\n", "line 3: ID 1-0 of stream 'k' is not above"),
        ("a,b\n1,2\n", "the first columns are a, b, not stream, id"),
        ("stream,id,a\nk,1,x\n", "'1' is not a complete ID"),
        ("stream,id,a\nk,1-0\n", "2 cells, but line 1 names 3"),
        ("stream,id\nk,1-0\n", "line 2: an entry without fields"),
        ("", "an empty file"),
    ],
)
def test_a_table_that_is_none(text: str, problem: str) -> None:
    Path("a.csv").write_text(text)
    result = run("load", "s", "a.csv", status=1)
    assert problem in result.stderr
    assert "nothing was loaded" in result.stderr or "without fields" in result.stderr


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("ms", [1, None], "row 2: ms None and seq 0 are no ID"),
        ("seq", [1, -2], "row 2: ms 2 and seq -2 are no ID"),
        ("ms", [1.0, 2.5], "row 1: the column 'ms' is double, not whole numbers"),
        ("seq", ["1", "2"], "row 1: the column 'seq' is string, not whole numbers"),
        ("id", ["1-1", None], "row 2: the ID None is not text"),
        ("id", [1, 2], "row 1: the ID 1 is not text"),
        ("stream", ["a", None], "row 2: None is neither text nor bytes"),
    ],
)
def test_parquet_columns_that_are_no_ids(column: str, values: list[object], problem: str) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    pairs = pa.array([[("a", "b")]] * 2, pa.map_(pa.string(), pa.string()))
    columns = {"stream": ["k", "k"], "ms": [1, 2], "seq": [0, 0], "fields": pairs, column: values}
    parquet.write_table(pa.table(columns), "a.parquet")
    assert problem in run("load", "s", "a.parquet", status=1).stderr


@pytest.mark.parametrize("column", ["stream", "id", "fields"])
def test_parquet_with_two_columns_of_one_name(column: str) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "stream": pa.array(["k"]),
        "id": pa.array(["1-1"]),
        "fields": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
    }
    names = [*columns, column]
    parquet.write_table(pa.table([columns[name] for name in names], names=names), "a.parquet")
    assert f"two columns '{column}'" in run("load", "s", "a.parquet", status=1).stderr


def test_parquet_of_large_lists_is_read() -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    pair = pa.struct([("field", pa.large_string()), ("value", pa.large_string())])
    columns = {"id": ["1-1"], "fields": pa.array([[("a", "b")]], pa.large_list(pair))}
    parquet.write_table(pa.table(columns), "a.parquet")
    run("load", "s", "k", "a.parquet")
    with streamkeep.open("s", readonly=True) as store:
        assert store.xrange("k") == [(b"1-1", {b"a": b"b"})]


def test_a_csv_column_that_is_named_twice_comes_once() -> None:
    with streamkeep.open("s") as store:
        store.xadd("k", {"a": "1"}, "1-0")
    shown = run("dump", "s", "--format", "csv", "--field", "a", "--field", "a").stdout
    assert shown == "stream,id,a\nk,1-0,1\n"


def test_parquet_of_others_goes_into_a_stream() -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    maps = pa.array([[("a", "1")], [("b", "2"), ("c", "3")]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"ms": [5, 6], "seq": [0, 1], "fields": maps})
    parquet.write_table(table, "a.parquet")
    assert "no column 'stream'" in run("load", "s", "a.parquet", status=1).stderr
    run("load", "s", "k", "a.parquet")
    assert lines("range", "s", "k") == ["5-0  a=1", "6-1  b=2 c=3"]
    Path("b.parquet").write_bytes(b"PAR1 nothing")
    assert "not a Parquet file" in run("load", "s", "k", "b.parquet", status=1).stderr
    parquet.write_table(pa.table({"x": [1]}), "c.parquet")
    assert "columns 'id' and 'fields' are needed" in run("load", "s", "c.parquet", status=1).stderr


def test_wrong_command_lines() -> None:
    fill()
    for args, message in (
        (["dump", "s", "--format", "rdb", "--start", "1"], "are not for rdb"),
        (["dump", "s", "--field", "a"], "--field is for csv"),
        (["dump", "s", "--json"], "needs --output"),
        (["load", "s", "k", "x.resp", "--format", "resp"], "does not exist"),
        (["load", "s", "a", "b", "c"], "at most KEY and FILE"),
        (["load", "s"], "Missing argument"),
    ):
        assert message in run(*args, status=2).stderr
    assert "no such key" in run("dump", "s", "nix", status=6).stderr
    assert "no such store" in run("dump", "nix", status=6).stderr
    Path("rows.jsonl").write_text('{"a":1}\n')
    told = run("load", "s", "rows.jsonl", status=1).stderr
    assert "name the stream that these rows go to" in told


# --- diff ---------------------------------------------------------------------------------------


def test_diff_names_each_difference() -> None:
    fill("a")
    fill("b")
    with streamkeep.open("b") as store:
        store.xdel("k", "20-0", "21-0", "23-0")
        store.xadd("new", {"x": 1})
        store.xack("k", "g", "10-0", "11-0")
        store.xclaim("k", "g", "c9", 0, ["12-0"], retrycount=7, time=1000)
        store.xgroup_destroy("k", "idle")
        store.xgroup_setid("k", "g", "70-0")
        store.delete("limited")
        store.xadd("limited", {"a": 2}, id="1-0")
        store.xnack("k", "g", "FAIL", "3-0")
    result = run("diff", "a", "b", status=7)
    found = result.stdout.splitlines()
    assert "- stream 'k' entries 20-0 to 21-0 (2)" in found
    assert "- stream 'k' entry 23-0" in found
    assert "+ stream 'new': 1 entry" in found
    assert "! stream 'limited' entry 1-0: a=1 against a=2" in found
    assert "- stream 'k' group 'idle'" in found
    assert "- stream 'k' group 'g' pending 10-0 to 11-0 (2)" in found
    assert "! stream 'k' group 'g' last_delivered_id: 67-0 against 70-0" in found
    assert "! stream 'k' group 'g' zone order: 3-0 2-0 against 2-0 3-0" in found
    assert any(
        line.startswith("! stream 'k' group 'g' pending 12-0: 'c1', 1 time") for line in found
    )
    assert f"{len(found)} differences" in result.stderr
    as_json = [json.loads(line) for line in lines("diff", "a", "b", "--json", status=7)]
    assert len(as_json) == len(found) + 1
    assert as_json[-1] == {
        "type": "summary",
        "command": "diff",
        "differences": len(found),
        "same": False,
    }
    assert len(lines("diff", "a", "b", "-n", "2", status=7)) == 2
    assert lines("diff", "a", "b", "limited", status=7) == [
        "! stream 'limited' entry 1-0: a=1 against a=2"
    ]


def test_diff_of_streams_that_are_cut_differently() -> None:
    for name, limit in (("a", 3), ("b", 7)):
        with streamkeep.open(name, node_max_entries=limit, sync="none") as store:
            for number in range(100):
                store.xadd("k", {"n": number}, id=f"{number + 1}-0")
    assert lines("diff", "a", "b") == []
    with streamkeep.open("b") as store:
        store.xtrim("k", maxlen=97, approximate=False)
    assert lines("diff", "a", "b", status=7)[-1] == "- stream 'k' entries 1-0 to 3-0 (3)"


# --- bytes --------------------------------------------------------------------------------------


def test_a_node_as_entries_and_as_bytes() -> None:
    fill()
    found = lines("dump", "s", "k", "--node", "5-0")
    assert found[0].startswith("macro node 1-0 in nodes: listpack of ")
    assert found[1] == "   0  live     1-0  n=1 pad=x"
    assert found[7].startswith("   6  deleted  7-0  n=7")
    slots = objects("dump", "s", "k", "--node", "5-0")
    assert slots[1]["fields"] == [["n", "1"], ["pad", "x"]]
    assert slots[7]["state"] == "deleted"
    found = lines("dump", "s", "k", "--node", "5-0", "--bytes")
    assert found[0].startswith("nodes: ")
    assert found[1].split() == ["0-2", "534b4e", "magic", "'SKN'", '"SKN"']
    assert found[-1].split()[-1] == "right"
    tail = lines("dump", "s", "k", "--node", "9999999999999999-0", "--bytes")
    assert tail[0].startswith("streams: ")
    assert any("entries_added" in line for line in tail)
    fields = objects("dump", "s", "k", "--node", "5-0", "--bytes")
    data = bytes.fromhex("".join(one["hex"] for one in fields if one["type"] == "field"))
    assert len(data) == fields[0]["size_bytes"]
    assert fields[-1] == {"type": "summary", "command": "dump", "damaged": 0}


def test_a_group_and_rows_of_a_table() -> None:
    fill()
    found = lines("dump", "s", "k", "--group", "g")
    assert found[0].startswith("  group 'g': last delivered ID 67-0")
    rows = lines("dump", "s", "k", "--group", "g", "--bytes")
    assert sum(line.startswith("pel ") for line in rows) == 2
    # Of each of two consumers: its row, its number, and its lease.
    assert sum(line.startswith("consumers ") for line in rows) == 6
    assert [one["type"] for one in objects("dump", "s", "k", "--group", "g")][:2] == [
        "group",
        "consumer",
    ]
    told = run("dump", "s", "k", "--group", "x", "--bytes", status=6).stderr
    assert "No such consumer group 'x'" in told
    for table in ("meta", "keys", "streams", "idempotency", "garbage", "segments"):
        shown = lines("dump", "s", "--table", table)
        assert bool(shown) == (table not in ("garbage", "segments"))
        assert not [line for line in shown if "damage" in line or "WRONG" in line]
    assert len(objects("dump", "s", "k", "--table", "streams", "--count", "1")) > 10


def test_files_of_a_store_and_of_the_archive() -> None:
    fill()
    (journal,) = Path("s/journal").glob("*.skj")
    found = lines("dump", "--journal", journal)
    assert any(" record 0 commit number" in line for line in found)
    found = lines("dump", "--checkpoint", "s/steady")
    assert any("slot 1 commit_number" in line for line in found)
    segment = ROOT / "tests" / "golden" / "v1" / "plain.seg"
    found = lines("dump", "--segment", segment)
    assert ": stream " in found[0]
    assert found[1].startswith("block 0: bytes 0-")
    assert found[2].startswith("macro node ")
    found = lines("dump", "--segment", segment, "--bytes")
    assert any("'SKSEG\\r\\n\\x1a'" in line for line in found)
    assert not [line for line in found if "WRONG" in line or " damage " in line]
    bad = bytearray(segment.read_bytes())
    bad[50] ^= 1
    Path("bad.seg").write_bytes(bad)
    found = lines("dump", "--segment", "bad.seg")
    assert any("damage" in line and "checksum" in line for line in found)
    assert run("dump", "--segment", "s/data.mdb", status=4).stderr


def test_wrong_command_lines_of_bytes() -> None:
    fill()
    for args in (
        ["dump"],
        ["dump", "s", "--bytes"],
        ["dump", "s", "--node", "1-0"],
        ["dump", "s", "k", "--node", "1-0", "--group", "g"],
        ["dump", "s", "k", "--node", "1-0", "--output", "x"],
    ):
        run(*args, status=2)


def test_a_stream_that_has_more_history_than_was_added_to_it_comes_back() -> None:
    with streamkeep.open("s") as store:
        store.set_retention("k", archive=True)
        store.xadd_many("k", [{"n": str(n)} for n in range(100)], [f"{n}-0" for n in range(1, 101)])
        store.xtrim("k", maxlen=10, approximate=False)
        store.archive()
        store.xsetid("k", "100-0", entries_added=20)
    run("dump", "s", "k", "--history", "--output", "all.jsonl")
    run("load", "t", "all.jsonl")
    with streamkeep.open("t") as store:
        assert store.xlen("k") == 100


@pytest.mark.parametrize("fields", ['{"ab":1}', '["ab"]', '[["a"],["b","c","d"]]', "[]"])
def test_fields_are_pairs(fields: str) -> None:
    with streamkeep.open("s") as store:
        store.xadd("k", {"f": "v"}, "1-0")
    run("dump", "s", "--output", "one.jsonl")
    text = Path("one.jsonl").read_text()
    Path("bad.jsonl").write_text(text.replace('[["f","v"]]', fields))
    assert Path("bad.jsonl").read_text() != text
    assert "bad.jsonl" in run("load", "t", "bad.jsonl", status=1).stderr
