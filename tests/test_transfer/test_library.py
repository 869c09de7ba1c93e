"""streamkeep.transfer as a library: every format there and back, and what is refused."""

from __future__ import annotations

import csv
import gzip
import inspect
import io
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from conftest import assert_sound
from streamkeep import transfer
from streamkeep.engine.commands.xadd import xadd_many
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError
from streamkeep.transfer import Progress
from streamkeep.transfer import load_file as loading
from streamkeep.transfer.loading.jsonl import JsonReader
from streamkeep.transfer.loading.staged import Load

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come

FORMATS = [one for one in transfer.LOAD_FORMATS if one in transfer.DUMP_FORMATS]
LOSSLESS = ("jsonl", "rdb", "dump")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory; every store in it must be sound when the test ends."""
    monkeypatch.chdir(tmp_path)
    yield
    for data in tmp_path.glob("*/data.mdb"):
        assert_sound(data.parent)


def fill(path: str = "s", entries: int = 40) -> None:
    """Make a store of two streams, with a group, bytes of any kind and deleted entries."""
    with streamkeep.open(path, sync="none") as store:
        numbers = range(1, entries + 1)
        made = [{"n": str(number), "é": "x" * (number % 7)} for number in numbers]
        store.xadd_many("k", made, [f"{number}-0" for number in numbers])
        store.xdel("k", "3-0")
        store.xgroup_create("k", "g", 0)
        store.xreadgroup("g", "c", {"k": ">"}, count=5)
        store.xnack("k", "g", "FAIL", "1-0")
        store.xadd(b"\xff", [("a", "1"), ("b", b"\xfe\n")], id="5-5")


def contents(path: str | Path) -> dict[bytes, list[str]]:
    with streamkeep.open(path, readonly=True) as store:
        return {key: [repr(one) for one in store.scan(key)] for key in store.scan_iter()}


def ids_of(path: str, key: str = "k") -> list[str]:
    """Return the IDs of a stream; none where there is no store."""
    if not Path(path, "data.mdb").exists():
        return []
    with streamkeep.open(path, readonly=True, decode_responses=True) as store:
        return [one.id for one in store.xrange(key)]


# --- there and back -----------------------------------------------------------------------------


def test_commands_are_applied_whatever_the_store_decodes() -> None:
    Path("a.aof").write_bytes(
        b"*5\r\n$4\r\nXADD\r\n$1\r\n\xff\r\n$3\r\n1-0\r\n$1\r\na\r\n$1\r\n\xfe\r\n"
        b"XADD k 1-0 a b\r\nXGROUP CREATE k g 0\r\nXCLAIM k g c 0 1-0 FORCE\r\nSET x y\r\n"
    )
    with streamkeep.open("s", decode_responses=True) as store:
        report = transfer.load(store, "a.aof")
    assert (report.kind, report.commands, report.entries) == ("commands", 5, 2)
    assert report.dropped == {"command SET": 1}
    transfer.load("s", io.BytesIO(b"FLUSHALL\r\n"), format="resp")
    assert contents("s") == {}


def test_a_dump_reads_a_store_a_snapshot_or_a_path() -> None:
    fill()
    dumps: list[bytes] = []
    with streamkeep.open("s") as store, store.snapshot() as snapshot:
        store.xadd("k", {"later": 1})
        for source, entries in ((snapshot, 40), (store, 41), ("s", 41), (Path("s"), 41)):
            out = io.BytesIO()
            report = transfer.dump(source, out, format="csv")
            assert (report.entries, report.size_bytes) == (entries, None)
            dumps.append(out.getvalue())
        assert snapshot.xlen("k") == 39  # it stays open, and so does `out`
    assert dumps[1] == dumps[2] == dumps[3] != dumps[0]
    with pytest.raises(streamkeep.StoreClosedError):
        transfer.dump(snapshot, "a.csv")
    assert not Path("a.csv").exists()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "rdb"])
def test_a_target_that_takes_a_part_of_a_write_gets_the_rest(kind: transfer.DumpFormat) -> None:
    """As the file of a socket without a buffer does: the rest was lost without a word."""

    class Raw(io.RawIOBase):
        data = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.data += bytes(data[:100])
            return min(len(data), 100)

    fill()
    target: Any = Raw()
    whole = io.BytesIO()
    transfer.dump("s", target, format=kind, keys="k")
    transfer.dump("s", whole, format=kind, keys="k")
    assert len(target.data) == len(whole.getvalue())
    assert not target.closed


def test_streams_ids_times_and_columns_are_chosen() -> None:
    fill()
    with streamkeep.open("s") as store:
        store.xadd("k", {"n": "late"}, id="1718004800500-0")
        store.xadd("z", {"n": 1}, id="1-0")
        for start, end, rows in (
            ("2024-06-10T07:33:20Z", None, ["1718004800500-0"]),
            (datetime(2024, 6, 10, 7, 33, 20, tzinfo=UTC), None, ["1718004800500-0"]),
            (None, "(2024-06-10T07:33:20.5", [f"{n}-0" for n in (38, 39, 40)]),
            ("39", 40, ["39-0", "40-0"]),
            (StreamId(39, 0), "(40-0", ["39-0"]),
        ):
            target = io.BytesIO()
            chosen: Any = {"keys": ["k"], "start": start, "end": end, "fields": ["n"]}
            transfer.dump(store, target, format="csv", **chosen)
            head, *found = csv.reader(io.StringIO(target.getvalue().decode()))
            assert head == ["stream", "id", "n"]
            assert [row[1] for row in found][-len(rows) :] == rows
        target = io.BytesIO()
        report = transfer.dump(store, target, format="jsonl", keys=("z", "k"), count=1)
        assert (report.streams, report.entries) == (2, 2)


def test_a_dump_is_loaded_group_by_group() -> None:
    with streamkeep.open("s", sync="none") as store:
        for group in ("f", "g", "h"):
            store.xgroup_create("k", group, mkstream=True)
    transfer.dump("s", "a.jsonl")
    loaded: list[int] = []  # groups, when the reader takes each line
    with streamkeep.open("t", sync="none") as store:
        load = Load(store)

        def lines() -> Iterator[bytes]:
            for line in Path("a.jsonl").read_bytes().splitlines(keepends=True):
                loaded.append(sum(len(store.xinfo_groups(key)) for key in store.scan_iter()))
                yield line

        JsonReader(lambda key: load.begin(key, "k"), lambda entries: None).read(lines())
        load.discard()
    assert loaded == [0, 0, 0, 0, 1, 2]  # one line is read ahead


# --- progress -----------------------------------------------------------------------------------


def test_progress_reaches_its_total() -> None:
    fill(entries=2500)
    told: list[Progress] = []
    transfer.dump("s", "a.jsonl", progress=told.append)
    assert told[-1] == Progress(2500, 2500, 2500)
    transfer.dump("s", "b.jsonl", count=10, progress=told.append)  # of each of both streams
    assert told[-1] == Progress(11, 11, 11)
    for name, key in (("a.jsonl", None), ("rows.jsonl", "k")):
        if key:
            Path(name).write_text('{"n":1}\n' * 2500)
        told.clear()
        transfer.load("t", name, key=key, progress=told.append)
        size = Path(name).stat().st_size
        assert told[-1] == Progress(2500, size, size)
        assert [one.entries for one in told] == sorted(one.entries for one in told)


@pytest.mark.parametrize(
    ("kind", "error"), [("jsonl", ValueError("enough")), ("csv", KeyError("enough"))]
)
def test_what_a_progress_function_raises_ends_the_load_as_it_is(
    kind: str, error: Exception
) -> None:
    fill(entries=2500)
    transfer.dump("s", f"a.{kind}")

    def stop(progress: Progress) -> None:
        raise error

    with pytest.raises(type(error), match="enough"):
        transfer.load("t", f"a.{kind}", progress=stop)
    assert not Path("t").exists()
    with pytest.raises(type(error), match="enough"):
        transfer.dump("s", f"b.{kind}", progress=stop)
    assert sorted(one.name for one in Path().iterdir()) == [f"a.{kind}", "s"]


# --- what is refused, and that nothing was changed ----------------------------------------------


@pytest.mark.parametrize("path", ["", "a\0b", "a\ud800"])
def test_a_path_that_no_file_can_have_is_named(path: str) -> None:
    fill()
    calls: list[Callable[[], object]] = [
        lambda: transfer.dump("s", path, format="jsonl"),
        lambda: transfer.load("s", path, format="jsonl"),
        lambda: transfer.dump(path, io.BytesIO(), format="jsonl"),
        lambda: list(transfer.inspect_segment(path)),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match="path of a folder or file"):
            call()


def test_an_unknown_format_lists_those_that_there_are() -> None:
    fill()
    for call, formats in ((transfer.dump, transfer.DUMP_FORMATS), (transfer.load, FORMATS)):
        for name, wanted in (("a.xml", None), ("a.jsonl", "xml"), ("plain", None)):
            with pytest.raises(streamkeep.ArgumentError) as found:
                call("s", name, format=wanted)  # type: ignore[arg-type]
            assert all(one in str(found.value) for one in formats)
    with pytest.raises(streamkeep.ArgumentError, match="no file name"):
        transfer.load("s", io.BytesIO(b""))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_off_or_hostile_changes_nothing(kind: transfer.LoadFormat) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    fill()
    transfer.dump("s", f"a.{kind}", redis="8.10")
    whole = Path(f"a.{kind}").read_bytes()
    with streamkeep.open("t") as store:
        store.xadd("other", {"a": "b"}, id="1-0")
        former = store.xinfo_stream("other", full=True)
        for data in (whole[: len(whole) // 2], whole[:-3], b"\x00" * 100, b"{" * 50_000, b"*\n"):
            if kind == "csv":
                data = data.rstrip(b"\n")  # what ends with a line may be whole
            if kind == "resp" and whole.startswith(data):
                continue  # commands before the end are applied: see below
            with pytest.raises(streamkeep.LoadError) as found:
                transfer.load(store, io.BytesIO(data), format=kind, name="bad")
            assert found.value.source == "bad"
            assert found.value.done == 0
            assert "bad" in str(found.value)
        assert store.keys() == [b"other"]
        assert store.xinfo_stream("other", full=True) == former
    with pytest.raises(streamkeep.LoadError):
        transfer.load("never", io.BytesIO(b"\x01\x02"), format=kind)
    assert not Path("never").exists()


def test_a_bad_row_says_what_is_stored_and_how_to_continue() -> None:
    Path("a.jsonl").write_text('{"n":1}\n' * 5 + "oops\n")
    with pytest.raises(streamkeep.LoadError) as found:
        transfer.load("s", "a.jsonl", key="k", batch=2)
    assert str(found.value).endswith("; 4 entries stored, up to line 4")
    assert (found.value.line, found.value.done) == (6, 4)
    assert found.value.hint == "from_line=5 continues after them"
    Path("a.jsonl").write_text('{"n":1}\n' * 6)
    assert transfer.load("s", "a.jsonl", key="k", from_line=5).entries == 2
    assert len(ids_of("s")) == 6


@pytest.mark.parametrize(
    ("data", "problem", "hint"),
    [
        (b"*1\r\n:5\r\n", "expected a string", ""),
        (b"*2\r\n$4\r\nXDEL\r\n", "truncated: expected another byte", ""),
        (b"x" * 70_000, "a line of more than 65536 bytes", ""),
        (
            b"XNEW k\r\n",
            "XNEW: an unknown command",
            "from_line=2 leaves this command out, skip=XNEW all of its name",
        ),
    ],
)
def test_a_damaged_first_command_names_no_line_to_resume_at(
    data: bytes, problem: str, hint: str
) -> None:
    with pytest.raises(streamkeep.LoadError, match=problem) as found:
        transfer.load("s", io.BytesIO(data), format="resp", name="a.resp")
    assert str(found.value).endswith("; no command was applied")
    assert (found.value.hint, found.value.done) == (hint, 0)
    assert not Path("s").exists()


def test_commands_before_a_bad_one_are_applied_and_counted() -> None:
    Path("a.resp").write_text("XADD k 1-0 a b\r\nXADD k 2-0 a b\r\nXADD k 2-0 a b\r\nXLEN k\r\n")
    with pytest.raises(streamkeep.LoadError) as found:
        transfer.load("s", "a.resp")
    assert str(found.value).endswith("; 2 commands applied")
    assert (found.value.line, found.value.done) == (3, 2)
    assert found.value.hint.startswith("from_line=3 resumes there; from_line=4 leaves")
    assert transfer.load("s", "a.resp", from_line=4).commands == 4
    assert ids_of("s") == ["1-0", "2-0"]


def test_an_error_of_the_store_says_in_a_note_what_is_stored() -> None:
    Path("a.jsonl").write_text('{"n":1}\n' * 3)
    with streamkeep.open("s") as store:
        calls = 0
        original = xadd_many

        def full(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise streamkeep.StoreFullError("the disk is full")
            return original(*args)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(loading, "xadd_many", full)
            with pytest.raises(streamkeep.StoreFullError) as found:
                transfer.load(store, "a.jsonl", key="k", batch=1)
    told = "a.jsonl: 2 entries stored, up to line 2; from_line=3 continues after them"
    assert told in found.value.__notes__


def test_a_file_that_exists_is_replaced_only_when_that_is_asked_for() -> None:
    fill()
    Path("a.csv").write_text("mine")
    with pytest.raises(streamkeep.TargetExistsError) as found:
        transfer.dump("s", "a.csv")
    assert "overwrite=True" in found.value.hint
    assert Path("a.csv").read_text() == "mine"
    transfer.dump("s", "a.csv", overwrite=True)
    assert Path("a.csv").read_bytes().startswith(b"stream,id,")


DUMP_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"format": "rdb", "start": "1"}, "start="),
    ({"format": "dump", "history": True}, "history="),
    ({"fields": ["a"]}, "fields= is for csv and parquet"),
    ({"redis": "9.9"}, "redis must be one of 5.0"),
    ({"redis": []}, "redis must be one of 5.0"),
    ({"keys": object()}, "keys is <object"),
    ({"fields": 1.5j, "format": "csv"}, "fields is 1.5j"),
    ({"start": "2024-99-10"}, "is not a time"),
    ({"end": "1900-01-01"}, "before 1970"),
    ({"count": -1}, "count must be a whole number of at least 0"),
    ({"count": "5"}, "count must be a whole number"),
]


def test_options_of_a_dump_that_cannot_apply() -> None:
    fill()
    for options, problem in DUMP_OPTIONS:
        with pytest.raises(streamkeep.ArgumentError, match=problem):
            transfer.dump("s", "a.jsonl", **options)
    assert not Path("a.jsonl").exists()


LOAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("a.jsonl", {"time_column": "a", "id_column": "b"}, "cannot be used together"),
    ("a.jsonl", {"time_unit": "s"}, "needs time_column="),
    ("a.jsonl", {"time_column": "a", "time_unit": "h"}, "time_unit must be one of"),
    ("a.jsonl", {"existing": "maybe"}, "existing must be one of"),
    ("a.jsonl", {"sort": True}, "sort= is for rows"),
    ("a.jsonl", {"time_column": "x"}, "time_column= is for rows"),
    ("a.csv", {"batch": 5}, "batch= is for rows"),
    ("a.resp", {"sort": True}, "sort= is for rows"),
    ("a.resp", {"existing": "replace"}, "existing= is for whole streams"),
    ("rows.jsonl", {"key": "k", "existing": "refuse"}, "existing= is for whole streams"),
    ("a.csv", {"key": "k", "database": 0}, "database= is for RDB"),
    ("a.rdb", {"key": "k", "from_line": 9}, "from_line= is for rows and commands"),
    ("a.jsonl", {"database": 0}, "database= is for RDB"),
    ("a.jsonl", {"from_line": 2}, "from_line= is for rows and commands"),
    ("a.jsonl", {"skip": ["DEL"]}, "skip= is for commands"),
    ("a.resp", {"skip": b"DEL"}, "skip must be a text"),
    ("a.csv", {"key": "k", "existing": "skip"}, "existing= is for whole streams"),
    ("a.resp", {"key": "k"}, "leave key= out"),
    ("a.csv", {"key": "k", "batch": 0}, "batch must be a whole number of at least 1, not 0"),
    ("a.resp", {"from_line": "2"}, "from_line must be a whole number"),
    ("a.rdb", {"database": "0"}, "database must be a whole number"),
    ("a.rdb", {"database": ""}, "database must be a whole number"),
    ("a.jsonl", {"max_line": 1.5}, "max_line must be a whole number"),
]


def test_options_of_a_load_that_cannot_apply() -> None:
    fill()
    for kind in ("jsonl", "csv", "resp", "rdb"):
        transfer.dump("s", f"a.{kind}")
    Path("rows.jsonl").write_text('{"a":1}\n')
    for name, options, problem in LOAD_OPTIONS:
        with pytest.raises(streamkeep.ArgumentError, match=problem):
            transfer.load("t", name, **options)
    assert not Path("t").exists()


class PathThatOpens(os.PathLike[str]):
    """A path that can also read and write, as py.path's."""

    def __fspath__(self) -> str:
        return "rows.jsonl"

    def read(self) -> str:
        return Path(self).read_text()

    def write(self, text: str) -> int:
        return Path(self).write_text(text)


def test_a_path_that_also_opens_its_file_is_a_path() -> None:
    fill()
    path: Any = PathThatOpens()
    transfer.dump("s", path)
    with pytest.raises(streamkeep.TargetExistsError):
        transfer.dump("s", path)
    assert (
        transfer.load("t", path).entries == transfer.dump("s", io.BytesIO(), format="csv").entries
    )


def test_what_is_neither_a_store_nor_a_binary_file_is_named() -> None:
    fill()
    wrong: Any = 5
    with pytest.raises(streamkeep.ArgumentError, match="a path is expected, not int"):
        transfer.dump(wrong, "a.jsonl")
    with pytest.raises(streamkeep.ArgumentError, match="open it in binary mode"):
        transfer.dump("s", io.StringIO(), format="jsonl")  # type: ignore[arg-type]
    transfer.dump("s", "a.jsonl")
    with pytest.raises(streamkeep.ArgumentError, match="a path is expected, not int"):
        transfer.load(wrong, "a.jsonl")
    with pytest.raises(streamkeep.ArgumentError, match="open it in binary mode"):
        transfer.load("t", io.StringIO(), format="jsonl")  # type: ignore[arg-type]
    for call in (transfer.dump, transfer.load):
        with pytest.raises(streamkeep.ArgumentError, match="path of a folder or file"):
            call("s", wrong, format="jsonl")
    with pytest.raises(FileNotFoundError):
        transfer.load("t", "absent.jsonl")
    assert not Path("t").exists()


# --- bytes --------------------------------------------------------------------------------------


def test_what_cannot_be_described_is_named() -> None:
    fill()
    with streamkeep.open("s") as store:
        for table in transfer.TABLE_NAMES:
            rows = list(transfer.inspect_table(store, table, count=1))
            assert sum(isinstance(one, transfer.Heading) for one in rows) <= 1
        with pytest.raises(streamkeep.NoSuchGroupError):
            list(transfer.inspect_group(store, "k", "absent"))
        with pytest.raises(streamkeep.ArgumentError, match="choose one of"):
            list(transfer.inspect_table(store, "absent"))
    with pytest.raises(streamkeep.CorruptionError):
        list(transfer.inspect_segment("s/data.mdb"))


# --- the library as such ------------------------------------------------------------------------


def test_every_public_name_is_there_and_explained() -> None:
    for name in transfer.__all__:
        value = getattr(transfer, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), name
    assert streamkeep.transfer is transfer
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = transfer.absent


@pytest.mark.parametrize("packed", [False, True])
def test_a_dump_is_known_however_slowly_it_comes(packed: bool) -> None:
    class Slow(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return self.read(5)

    fill()
    whole = io.BytesIO()
    transfer.dump("s", whole, format="jsonl")
    data = gzip.compress(whole.getvalue()) if packed else whole.getvalue()
    assert transfer.load("t", Slow(data), format="jsonl").kind == "streams"
    assert contents("t") == contents("s")
