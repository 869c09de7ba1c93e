"""Writing: rows to entries, staged by tasks and applied at once; driven without Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from model.profile import configured
from streamkeep.arrow.batches import DEFAULT_SCHEMA, SchemaError
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints
from streamkeep.format.core.errors import IdTooSmallError, UntrustedFileError
from streamkeep.pipeline.options import OptionError, parse_write
from streamkeep.pipeline.sink import executor as stage
from streamkeep.pipeline.sink import writer as sink
from streamkeep.pipeline.sink.apply import apply_staged
from streamkeep.pipeline.sink.executor import (
    RowError,
    RowReader,
    Run,
    Staged,
    StagedFileMissingError,
)
from streamkeep.pipeline.sink.identity import BatchError
from streamkeep.pipeline.sink.writer import StreamkeepStreamWriter, StreamkeepWriter
from streamkeep.pipeline.storage.places import new_folder, sweep

FIELDS = StructType().add("id", StringType()).add("n", StringType())
PLAIN = StructType().add("n", StringType())


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def write(
    store: Store[bytes], *partitions: list[pa.RecordBatch], schema: StructType = PLAIN, **given: Any
) -> None:
    options = {"path": str(store.path), "stream": "s", **{k: str(v) for k, v in given.items()}}
    writer = StreamkeepWriter(parse_write(options), schema, False)
    messages: list[WriterCommitMessage | None] = []
    for at, rows in enumerate(partitions):
        message = writer.write(iter(rows))
        # Tasks run elsewhere: each has a file of its own.
        assert message.staged.location.endswith("000000-0.arrow")  # type: ignore[attr-defined]
        folder = Path(writer.folder)
        moved = folder / f"{at}.arrow"
        if message.staged.location:  # type: ignore[attr-defined]
            (folder / "000000-0.arrow").rename(moved)
        staged = replace(message.staged, location=str(moved))  # type: ignore[attr-defined]
        messages.append(replace(message, staged=staged))  # type: ignore[type-var]
    writer.commit(messages)


def entries(store: Store[bytes], key: str = "s") -> list[tuple[str, list[bytes]]]:
    return [
        (entry.id.decode(), [part for pair in entry.pairs for part in pair])
        for entry in store.scan(key)
    ]


@pytest.fixture
def leftovers(store: Store[bytes]) -> Callable[[], list[Path]]:
    """A function that lists what jobs have left in the staging folder."""
    return lambda: list((store.path / "staging").glob("*"))


def test_rows_become_entries_in_order_of_partitions(
    store: Store[bytes], leftovers: Callable[[], list[Path]]
) -> None:
    parts = [[batch(n=[f"{p}.{b}.{n}" for n in range(50)]) for b in range(3)] for p in range(2)]
    write(store, *parts)
    found = [pairs[1].decode() for _, pairs in entries(store)]
    assert found == [f"{p}.{b}.{n}" for p in range(2) for b in range(3) for n in range(50)]
    assert leftovers() == []


def test_what_was_read_is_written_as_it_was(open_store: Callable[..., Store[bytes]]) -> None:
    fields = [[{"field": b"a", "value": b"\xff"}, {"field": b"a", "value": b""}]] * 3
    rows = pa.RecordBatch.from_pydict(
        {
            "stream": ["x", "y", "x"],
            "id": ["1-1", "1-1", "2-1"],
            "ms": [1, 1, 2],
            "seq": [1, 1, 1],
            "ts": [0, 0, 0],
            "fields": fields,
        },
        schema=DEFAULT_SCHEMA,
    )
    store = open_store("copy")
    reader = RowReader(rows.schema, None)
    assert reader.read(rows.slice(1)) == {
        b"y": [(1, 1, [b"a", b"\xff", b"a", b""])],
        b"x": [(2, 1, [b"a", b"\xff", b"a", b""])],
    }
    staged = stage.stage([rows], str(store.path / "staging" / "job"), "0", None)
    with store.transaction() as transaction:
        assert apply_staged(transaction.txn, [staged]) == {b"x": 2, b"y": 1}
    assert entries(store, "x") == [(f"{n}-1", [b"a", b"\xff", b"a", b""]) for n in (1, 2)]


@configured(50)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([b"x", b"y"]), st.integers(1, 1000), st.binary(max_size=5)),
            max_size=30,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 40),
)
def test_whatever_tasks_stage_is_applied(
    tmp_path: Path, parts: list[list[tuple[bytes, int, bytes]]], chunk: int
) -> None:
    used: set[tuple[bytes, int]] = set()
    unique = [
        [row for row in part if (row[0], row[1]) not in used and not used.add((row[0], row[1]))]  # type: ignore[func-returns-value]
        for part in parts
    ]
    job = new_folder(str(tmp_path / "staging"))
    before = stage._CHUNK_ROWS
    stage._CHUNK_ROWS = chunk  # type: ignore[misc]  # so that there are many runs
    try:
        staged = [
            stage.stage(
                [
                    batch(
                        stream=pa.array([row[0]], pa.binary()),
                        id=[f"{row[1]}-0"],
                        v=pa.array([row[2]], pa.binary()),
                    )
                    for row in part
                ],
                job,
                str(at),
                None,
            )
            for at, part in enumerate(unique)
        ]
    finally:
        stage._CHUNK_ROWS = before  # type: ignore[misc]
    path = Path(new_folder(str(tmp_path / "stores")))
    path.parent.mkdir(exist_ok=True)
    with Store(path, sync="none") as store:
        with store.transaction() as transaction:
            apply_staged(transaction.txn, staged)
        for key in (b"x", b"y"):
            expected = sorted((row[1], row[2]) for part in unique for row in part if row[0] == key)
            found = [(entry.stream_id.ms, entry.pairs[0][1]) for entry in store.scan(key)]
            assert found == expected


def test_plain_columns_become_fields_as_text(store: Store[bytes]) -> None:
    noon = dt.datetime(2013, 1, 31, 12, tzinfo=dt.UTC)
    rows = pa.RecordBatch.from_pydict(
        {
            "flag": [True, None],
            "count": [7, -1],
            "price": [1.5, None],
            "sum": pa.array([Decimal("1.50"), None], pa.decimal128(6, 2)),
            "day": [dt.date(2013, 1, 31), None],
            "at": pa.array([noon, None], pa.timestamp("us", "UTC")),
            "field.ms": [b"\xff", None],
        }
    )
    (first, second) = RowReader(rows.schema, b"s").read(rows)[b"s"]
    pairs = dict(zip(first[2][0::2], first[2][1::2], strict=True))
    assert pairs == {
        b"flag": b"true",
        b"count": b"7",
        b"price": b"1.5",
        b"sum": b"1.50",
        b"day": b"2013-01-31",
        b"at": b"2013-01-31 12:00:00.000000Z",
        b"ms": b"\xff",
    }
    assert second[2] == [b"count", b"-1"]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_text_of_16_bytes_is_not_taken_for_the_halves_of_an_id(kind: pa.DataType) -> None:
    texts = ["1718004800000-9", "1718004800000-10", "1718004800000123"]
    rows = pa.RecordBatch.from_pydict({"id": pa.array(texts, kind), "n": ["1", "2", "3"]})
    ids = [made[:2] for made in RowReader(rows.schema, b"s").read(rows)[b"s"]]
    assert ids == [(1718004800000, 9), (1718004800000, 10), (1718004800000123, 0)]


@pytest.mark.parametrize("large", ["", "large_"])
def test_text_and_bytes_may_have_large_types(large: str) -> None:
    """Those of Spark with `spark.sql.execution.arrow.useLargeVarTypes`."""
    kinds = {"stream": f"{large}string", "text": f"{large}string", "bytes": f"{large}binary"}
    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in kinds.items()])
    columns = {"stream": ["\\xff"], "text": ["t"], "bytes": [b"\xff"]}
    rows = pa.RecordBatch.from_pydict(columns, schema=schema)
    found = RowReader(schema, None).read(rows)
    assert found == {b"\xff": [(0, 1, [b"text", b"t", b"bytes", b"\xff"])]}


def test_a_map_of_fields(store: Store[bytes]) -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows = pa.RecordBatch.from_pydict({"fields": pa.array([[("a", "1")], [("b", "2")]], kind)})
    reader = RowReader(rows.schema, b"s")
    assert [pairs for _, _, pairs in reader.read(rows.slice(1))[b"s"]] == [[b"b", b"2"]]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"n": pa.int64(), "fields": pa.map_(pa.string(), pa.string())}, "and a column 'fields'"),
        ({"id": pa.string()}, "no column 'fields'"),
        ({"ms": pa.int64(), "n": pa.string()}, "needs both columns 'ms' and 'seq'"),
        ({"fields": pa.string()}, "array<struct<field,value>> or map"),
        (
            {"fields": pa.list_(pa.struct([("a", pa.string()), ("value", pa.string())]))},
            "array<struct<field,value>> or map",
        ),
        ({"n": pa.list_(pa.string())}, "but a field holds text"),
    ],
)
def test_columns_that_cannot_be_written(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        RowReader(pa.schema(list(columns.items())), b"s")
    with pytest.raises(SchemaError, match="the option 'stream', or add a column"):
        RowReader(pa.schema([("n", pa.string())]), None)
    with pytest.raises(SchemaError, match="column 'stream' is int64, expected string or binary"):
        RowReader(pa.schema([("stream", pa.int64()), ("n", pa.string())]), None)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"n": [None]}, "has no field"),
        ({"id": ["x"], "n": ["1"]}, "column 'id' is 'x'"),
        ({"id": [None], "n": ["1"]}, "column 'id' is None"),
        ({"ms": [-1], "seq": [0], "n": ["1"]}, "column 'ms' is -1"),
        ({"ms": [1.0, 1.5], "seq": [0, 0], "n": ["1", "2"]}, r"column 'ms' is 1\.5, expected 0"),
        ({"ms": [1, None], "seq": [0, 0], "n": ["1", "2"]}, "column 'ms' is None"),
        (
            {"id": ["5-1", "6-1"], "ms": [5, 6], "seq": [1, 2], "n": ["1", "2"]},
            "column 'seq' is 2, which is not that of the ID 6-1",
        ),
        ({"id": ["5-1"], "ms": [6], "n": ["1"]}, "column 'ms' is 6, which is not that of the ID"),
        ({"n": pa.array([0, 10**9], pa.date32())}, r"has 1000000000 as date32\[day\] in row 1"),
        ({"n": pa.array([1 << 62], pa.timestamp("s"))}, r"as timestamp\[s\] in row 0"),
    ],
)
def test_rows_that_cannot_be_written(columns: dict[str, Any], problem: str) -> None:
    rows = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(RowError, match=problem):
        RowReader(rows.schema, b"s").read(rows)


def test_an_id_that_is_not_new_leaves_the_store_as_it_was(store: Store[bytes]) -> None:
    store.xadd("s", {"n": "0"}, id="5-0")
    for ids in (["6-0", "5-0"], ["7-0", "7-0"], ["4-0", "8-0"]):
        with pytest.raises(IdTooSmallError, match=r"stream b's': entry [457]-0 is not above"):
            write(store, [batch(id=ids, n=["1", "2"])], schema=FIELDS, txnAppId="a", txnVersion=1)
    assert store.xlen("s") == 1
    write(store, [batch(id=["6-0"], n=["1"])], schema=FIELDS, txnAppId="a", txnVersion=1)
    assert store.xlen("s") == 2


def test_retention_options(store: Store[bytes]) -> None:
    write(store, [batch(n=[str(n) for n in range(100)])], maxLen=10, approximate=False)
    assert store.xlen("s") == 10
    ids = [f"{10**15 + n}-0" for n in range(10)]
    rows = batch(id=ids, n=[str(n) for n in range(10)])
    write(store, [rows], schema=FIELDS, minId=ids[4], approximate=False)
    assert [entry for entry, _ in entries(store)] == ids[4:]


def test_a_batch_that_is_repeated_counts_once(
    store: Store[bytes], leftovers: Callable[[], list[Path]]
) -> None:
    for version in (1, 1, 2, 1, 2):
        write(store, [batch(n=[str(version)])], txnAppId="job", txnVersion=version)
    write(store, [batch(n=["other"])], txnAppId="another", txnVersion=1)
    assert [pairs[1] for _, pairs in entries(store)] == [b"1", b"2", b"other"]
    assert leftovers() == []


def test_a_batch_that_was_applied_before_is_on_disk_when_it_is_done(
    store: Store[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first driver died before the sync."""
    with monkeypatch.context() as patch:
        patch.setattr(sink, "Store", lambda path: Store(path, sync="none"))
        write(store, [batch(n=["1"])], txnAppId="job", txnVersion=1)
    write(store, [batch(n=["1"])], txnAppId="job", txnVersion=1)
    assert store.durability().durable_commit == store.durability().last_commit


@pytest.mark.parametrize("place", ["sink:staged", "sink:applied", "sink:committed"])
def test_a_crash_at_any_place_of_a_commit(
    store: Store[bytes], place: str, tmp_path: Path, leftovers: Callable[[], list[Path]]
) -> None:
    """Spark then calls abort, and runs the batch again."""
    checkpoint = made_by_spark(tmp_path)
    options = parse_write(
        {"path": str(store.path), "stream": "s", "checkpointLocation": checkpoint}
    )

    def attempt(batch_id: int) -> None:
        plan(checkpoint, batch_id)
        writer = StreamkeepStreamWriter(options, PLAIN, False)
        rows = [batch(n=[f"{batch_id}.{n}" for n in range(5)])]
        messages: list[WriterCommitMessage | None] = [writer.write(iter(rows))]
        again = StreamkeepStreamWriter(options, PLAIN, False)  # commits run in another process
        try:
            again.commit(messages, batch_id)
        except RuntimeError:
            again.abort(messages, batch_id)
            raise

    attempt(0)
    failpoints.arm(place, Mock(side_effect=RuntimeError(place)))
    with pytest.raises(RuntimeError, match=place):
        attempt(1)
    attempt(1)
    attempt(2)
    found = [pairs[1].decode() for _, pairs in entries(store)]
    assert found == [f"{b}.{n}" for b in range(3) for n in range(5)]
    assert leftovers() == []


def made_by_spark(folder: Path) -> str:
    """Make a checkpoint as Spark does, with an ID of its own; return its path."""
    checkpoint = folder / f"checkpoint-{uuid.uuid4().hex}"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    return str(checkpoint)


def plan(checkpoint: str, number: int) -> None:
    """Plan a batch as Spark does: once, before it runs for the first time."""
    file = Path(checkpoint) / "offsets" / str(number)
    file.parent.mkdir(exist_ok=True)
    if not file.exists():
        file.write_text(f'v1\n{{"batchTimestampMs":{time.time_ns()}}}\n{{}}')


def stream(store: Store[bytes], checkpoint: str, number: int, value: str, **more: str) -> None:
    """Write a batch of one row, as a streaming query with a checkpoint does."""
    plan(checkpoint, number)
    options = {"path": str(store.path), "stream": "s", "checkpointLocation": checkpoint, **more}
    writer = StreamkeepStreamWriter(parse_write(options), PLAIN, False)
    writer.commit([writer.write(iter([batch(n=[value])]))], number)


def test_queries_are_told_apart_by_what_is_in_their_checkpoints(
    store: Store[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):  # both say "checkpoint", which is not the same folder
        (tmp_path / name).mkdir()
        made = Path(made_by_spark(tmp_path / name))
        made.rename(tmp_path / name / "checkpoint")
        monkeypatch.chdir(tmp_path / name)
        for number in (0, 0, 1):
            stream(store, "checkpoint", number, f"{name}.{number}")
    shutil.rmtree("checkpoint")  # and a new query begins under the same path
    Path(made_by_spark(tmp_path / "two")).rename("checkpoint")
    stream(store, "checkpoint", 0, "three.0")
    found = [pairs[1].decode() for _, pairs in entries(store)]
    assert found == ["one.0", "one.1", "two.0", "two.1", "three.0"]


def test_a_name_that_another_checkpoint_has_used_is_refused(
    store: Store[bytes], tmp_path: Path, leftovers: Callable[[], list[Path]]
) -> None:
    first, second = made_by_spark(tmp_path), made_by_spark(tmp_path)
    for number in (0, 0, 1):
        stream(store, first, number, str(number), txnAppId="app")
    with pytest.raises(BatchError, match=r"use the former checkpoint, or another txnAppId"):
        stream(store, second, 0, "lost before", txnAppId="app")
    stream(store, second, 0, "2", txnAppId="of its own")
    stream(store, first, 2, "3", txnAppId="app")
    with pytest.raises(BatchError, match=r"has written up to batch 2: it was set back"):
        stream(store, first, 1, "set back", txnAppId="app")
    assert [pairs[1].decode() for _, pairs in entries(store)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("back", [1, 2])  # batches
def test_a_checkpoint_that_was_put_back_loses_no_batch(
    store: Store[bytes], tmp_path: Path, back: int
) -> None:
    checkpoint = made_by_spark(tmp_path)
    stream(store, checkpoint, 0, "0")
    shutil.copytree(checkpoint, tmp_path / "copy")
    for number in range(1, 1 + back):
        stream(store, checkpoint, number, str(number))
    shutil.rmtree(checkpoint)
    shutil.move(tmp_path / "copy", checkpoint)
    with pytest.raises(BatchError, match=r"batch 1 comes again, .*: it was set back"):
        stream(store, checkpoint, 1, "1 and what came after it")
    assert [pairs[1] for _, pairs in entries(store)] == [b"%d" % n for n in range(1 + back)]


def test_a_store_that_lacks_batches_of_a_query_is_refused(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store, checkpoint = open_store(), made_by_spark(tmp_path)
    stream(store, checkpoint, 0, "0")
    old = open_store("old")  # as if copied before the next batch
    shutil.copytree(checkpoint, tmp_path / "ck")
    stream(old, checkpoint, 0, "0")
    stream(store, checkpoint, 1, "1")
    for other, has in ((old, "batches up to 0"), (open_store("empty"), "no batch")):
        for name in ({}, {"txnAppId": "app"}):
            if name and other is old:
                continue  # with a name it is another query
            with pytest.raises(BatchError, match=rf"batch 2 comes, .* has {has} of this query"):
                stream(other, checkpoint, 2, "2", **name)
        assert other.exists("s") == (other is old)
    stream(store, checkpoint, 2, "2")
    assert store.xlen("s") == 3


def test_a_job_numbers_the_batches_of_each_stream(store: Store[bytes], tmp_path: Path) -> None:
    job: dict[str, Any] = {"txnAppId": "job", "txnVersion": 1}
    for key in ("a", "b", "a"):
        write(store, [batch(n=["1"])], stream=key, **job)
    keyed = StructType().add("stream", StringType()).add("n", StringType())
    for _ in range(2):
        rows = [batch(stream=["b", "c", "c"], n=["2", "2", "3"])]
        options = {"path": str(store.path), "txnAppId": "job", "txnVersion": "1"}
        writer = StreamkeepWriter(parse_write(options), keyed, False)
        writer.commit([writer.write(iter(rows))])
    assert {key: store.xlen(key) for key in "abc"} == {"a": 1, "b": 1, "c": 2}
    with pytest.raises(OptionError, match="next: give both, or neither"):
        write(store, [batch(n=["1"])], txnAppId="job")
    for key in ("a", "b"):  # queries, whose own batches Spark numbers
        stream(store, made_by_spark(tmp_path), 0, "3", stream=key, txnAppId="queries")
    assert {key: store.xlen(key) for key in "abc"} == {"a": 2, "b": 2, "c": 2}
    with pytest.raises(BatchError, match=r"use the former checkpoint, or another txnAppId"):
        stream(store, made_by_spark(tmp_path), 0, "4", stream="a", txnAppId="queries")


def test_a_checkpoint_without_identity_is_refused(store: Store[bytes], tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(BatchError, match=r"nothing: the checkpoint's file 'metadata'"):
        stream(store, str(tmp_path / "nothing"), 0, "1")
    checkpoint = made_by_spark(tmp_path)
    options = {"path": str(store.path), "stream": "s", "checkpointLocation": checkpoint}
    writer = StreamkeepStreamWriter(parse_write(options), PLAIN, False)
    with pytest.raises(BatchError, match=r"the checkpoint's file 'offsets/0'"):
        writer.commit([writer.write(iter([batch(n=["1"])]))], 0)
    assert store.xlen("s") == 0


def test_streaming_writes_need_a_name(store: Store[bytes]) -> None:
    options = parse_write({"path": str(store.path), "stream": "s"})
    with pytest.raises(OptionError, match="checkpointLocation"):
        StreamkeepStreamWriter(options, PLAIN, False)
    with pytest.raises(OptionError, match="streams can only be appended to"):
        StreamkeepWriter(options, PLAIN, True)


def test_folders_of_dead_jobs_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Path(new_folder(str(tmp_path)))
    old.mkdir()
    (old / "0.arrow").write_bytes(b"x")
    assert sweep(str(tmp_path)) == 0
    (tmp_path / "2024-06-10").mkdir()  # of somebody else
    began = int(old.name.partition("-")[0])
    monkeypatch.setattr(time, "time", lambda: began + 8 * 24 * 3600)
    assert sweep(str(tmp_path)) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["2024-06-10"]
    assert sweep(str(tmp_path / "nowhere")) == 0


def test_a_task_that_fails_leaves_no_file(
    store: Store[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_CHUNK_ROWS", 1)
    folder = store.path / "staging" / "job"
    with pytest.raises(RowError, match="has no field"):
        stage.stage([batch(n=["1"]), batch(n=["2", None])], str(folder), "0", b"s")
    assert list(folder.iterdir()) == []


def test_a_staged_file_that_the_driver_cannot_see(store: Store[bytes]) -> None:
    staged = Staged("/nowhere/0.arrow", (Run(b"s", 0, 1, 1),), False)
    with (
        store.transaction() as transaction,
        pytest.raises(StagedFileMissingError, match="set the option 'stagingPath'"),
    ):
        apply_staged(transaction.txn, [staged])


def test_staged_files_follow_the_umask_also_of_a_store_that_is_new(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        options = parse_write({"path": str(tmp_path / "store"), "stream": "s"})
        writer = StreamkeepWriter(options, PLAIN, False)
        writer.write(iter([batch(n=["1"])]))
    finally:
        os.umask(before)
    for folder in (tmp_path / "store", tmp_path / "store" / "staging"):
        assert folder.stat().st_mode & 0o077 == 0
    assert len(list(tmp_path.glob("store/staging/*/*.arrow"))) == 1


def test_nothing_is_staged_through_a_link(store: Store[bytes], tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (store.path / "staging").symlink_to(tmp_path / "outside")
    with pytest.raises(UntrustedFileError, match="staging: a symbolic link"):
        write(store, [batch(n=["1"])])
    assert list((tmp_path / "outside").iterdir()) == []
    (store.path / "staging").unlink()
