"""Which entries micro-batches read: the reader that Spark drives, driven without Spark."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
)
from pyspark.sql.types import LongType, StringType, StructType

from streamkeep.engine.api.store import Store
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.source.losses import DataLossError
from streamkeep.pipeline.source.stream_reader import StreamkeepStreamReader

SCHEMA = StructType().add("stream", StringType()).add("id", StringType()).add("ms", LongType())
Query = Callable[..., StreamkeepStreamReader]


@pytest.fixture
def query(store: Store[bytes]) -> Iterator[Query]:
    """A function that makes readers of streaming queries on the store."""

    def make(**options: object) -> StreamkeepStreamReader:
        if "subscribePattern" not in options:
            options.setdefault("subscribe", "s")
        options.setdefault("startingOffsets", "earliest")
        given = {name: str(value) for name, value in options.items()}
        made.append(StreamkeepStreamReader(parse_read({"path": str(store.path), **given}), SCHEMA))
        return made[-1]

    made: list[StreamkeepStreamReader] = []
    yield make
    for one in made:
        one.stop()


def through_spark(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as it comes back from a checkpoint."""
    loaded: dict[str, Any] = json.loads(json.dumps(offset))
    return loaded


def batch(
    reader: StreamkeepStreamReader, start: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Run one micro-batch; return the IDs read, and where it ended."""
    limit = reader.getDefaultReadLimit()
    end = through_spark(reader.latestOffset(through_spark(start), limit))
    if json.dumps(end) == json.dumps(start):  # how Spark sees that nothing is new
        return [], end
    return read(reader, start, end), end


def read(reader: StreamkeepStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Return the IDs between two offsets, read as tasks read them."""
    ids = []
    for partition in reader.partitions(start, end):
        task = pickle.loads(pickle.dumps(reader))
        for found in task.read(pickle.loads(pickle.dumps(partition))):
            ids += found.column("id").to_pylist()
    return ids


def add(store: Store[bytes], first: int, count: int, key: str = "s") -> list[str]:
    """Append entries with rising IDs; return these."""
    ids = [f"{first + n}-0" for n in range(count)]
    store.xadd_many(key, [{"n": str(n)} for n in range(count)], ids=ids)
    return ids


def test_each_entry_is_in_one_batch(store: Store[bytes], query: Query) -> None:
    expected = add(store, 1, 1000)
    reader = query(maxEntriesPerTrigger=300)
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    offset = through_spark(reader.initialOffset())
    sizes = []
    found: list[str] = []
    for _ in range(6):
        ids, offset = batch(reader, offset)
        sizes.append(len(ids))
        found += ids
    assert sizes == [300, 300, 300, 100, 0, 0]
    assert found == expected
    more = add(store, 5000, 7)
    assert batch(reader, offset)[0] == more


def test_a_batch_is_the_same_when_it_is_read_again(store: Store[bytes], query: Query) -> None:
    add(store, 1, 500)
    reader = query(maxEntriesPerTrigger=123)
    start = reader.initialOffset()
    ids, end = batch(reader, start)
    add(store, 1000, 500)
    assert read(query(), start, end) == ids


def test_new_queries_begin_where_they_are_told(store: Store[bytes], query: Query) -> None:
    add(store, 1, 10)
    for starting, expected in (("latest", []), ("8-0", ["8-0", "9-0", "10-0"]), ("(9-0", ["10-0"])):
        reader = query(startingOffsets=starting)
        assert batch(reader, reader.initialOffset())[0] == expected


def test_a_limit_of_bytes(store: Store[bytes], query: Query) -> None:
    store.xadd_many("s", [{"f": "x" * 1000} for _ in range(100)])
    reader = query(maxBytesPerTrigger=10_000)
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxBytes)
    offset = reader.initialOffset()
    found = 0
    for _ in range(30):
        ids, offset = batch(reader, offset)
        assert len(ids) <= 12
        found += len(ids)
    assert found == 100
    one = query(maxBytesPerTrigger=1)
    assert len(batch(one, one.initialOffset())[0]) == 1


def test_streams_share_a_limit_and_none_starves(store: Store[bytes], query: Query) -> None:
    add(store, 1, 1000, "a")
    add(store, 1, 30, "b")
    reader = query(subscribe="a,b", maxEntriesPerTrigger=100)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    schema_rows = []
    for partition in reader.partitions(start, end):
        for found in reader.read(partition):
            schema_rows += found.column("stream").to_pylist()
    assert (schema_rows.count("a"), schema_rows.count("b")) == (70, 30)


def test_streams_that_appear_are_read_from_their_beginning(
    store: Store[bytes], query: Query
) -> None:
    reader = query(subscribePattern="s.*", startingOffsets="latest")
    offset = reader.initialOffset()
    assert offset == {}
    add(store, 1, 3, "s1")
    ids, offset = batch(reader, offset)
    assert ids == ["1-0", "2-0", "3-0"]
    add(store, 1, 2, "s2")
    add(store, 1, 2, "other")
    assert batch(reader, offset)[0] == ["1-0", "2-0"]


def test_available_now_ends_at_what_was_there(store: Store[bytes], query: Query) -> None:
    add(store, 1, 10)
    for reader in (query(), query(maxEntriesPerTrigger=4)):
        offset = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        add(store, store.xlen("s") + 1, 5)
        found: list[str] = []
        for _ in range(5):
            ids, offset = batch(reader, offset)
            found += ids
        assert found == [f"{n}-0" for n in range(1, len(found) + 1)]
        assert len(found) == store.xlen("s") - 5


def test_spark_may_ask_for_everything_whatever_the_options(
    store: Store[bytes], query: Query
) -> None:
    add(store, 1, 100)
    reader = query(maxEntriesPerTrigger=3)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(read(reader, start, end)) == 100


# --- what is gone ---------------------------------------------------------------------------------


def test_trimming_what_was_read_loses_nothing(store: Store[bytes], query: Query) -> None:
    add(store, 1, 100)
    reader = query(maxEntriesPerTrigger=40)
    _, offset = batch(reader, reader.initialOffset())
    store.xtrim("s", minid="41-0", approximate=False)
    ids, offset = batch(reader, offset)
    assert ids[0] == "41-0"
    assert len(ids) == 40


@pytest.mark.parametrize("limit", [40, 100])
def test_trimming_what_was_not_read_is_an_error(
    store: Store[bytes], query: Query, limit: int
) -> None:
    add(store, 1, 100)
    reader = query(maxEntriesPerTrigger=limit)
    _, offset = batch(reader, reader.initialOffset())
    add(store, 101, 50)
    store.xtrim("s", maxlen=30, approximate=False)
    lost = "entries from 41-0 on" if limit == 40 else "20 entries after 100-0"
    with pytest.raises(DataLossError, match=rf"{lost} were trimmed .* entry is 121-0;"):
        batch(reader, offset)
    assert batch(query(failOnDataLoss=False), offset)[0] == [f"{n}-0" for n in range(121, 151)]


def test_trimming_everything_is_noticed_with_an_empty_stream(
    store: Store[bytes], query: Query
) -> None:
    add(store, 1, 10)
    reader = query()
    _, offset = batch(reader, reader.initialOffset())
    add(store, 11, 5)
    store.xtrim("s", maxlen=0, approximate=False)
    end = reader.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(DataLossError, match=r"5 entries after 10-0 were .* no entry remains"):
        reader.partitions(offset, end)


def test_deleting_entries_is_no_loss(store: Store[bytes], query: Query) -> None:
    add(store, 1, 100)
    reader = query(maxEntriesPerTrigger=40)
    _, offset = batch(reader, reader.initialOffset())
    store.xdel("s", "41-0", "42-0")
    assert batch(reader, offset)[0][0] == "43-0"


def test_a_stream_made_again_is_noticed(store: Store[bytes], query: Query) -> None:
    add(store, 1, 10)
    reader = query()
    _, offset = batch(reader, reader.initialOffset())
    store.delete("s")
    with pytest.raises(DataLossError, match=r"was deleted after entry 10-0 was read; unread"):
        batch(reader, offset)
    assert batch(query(failOnDataLoss=False), offset) == ([], {})
    add(store, 5, 10)
    with pytest.raises(DataLossError, match="deleted and created again after entry 10-0"):
        batch(reader, offset)
    assert len(batch(query(failOnDataLoss=False), offset)[0]) == 10


@pytest.mark.parametrize("later", [0, 1, 50])  # entries that the last node of the batch gets
def test_trimming_after_planning_is_an_error_of_the_task(
    store: Store[bytes], query: Query, caplog: pytest.LogCaptureFixture, later: int
) -> None:
    add(store, 1, 20_000)
    reader = query()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts, forgiving = reader.partitions(start, end), query(failOnDataLoss=False)
    if later:
        add(store, 20_001, later)
    store.xtrim("s", maxlen=100 + later, approximate=False)
    lost = r"19900 of the 20000 entries from 0-1 to 20000-0 were trimmed after the read was planned"
    with pytest.raises(DataLossError, match=lost):
        list(reader.read(parts[0]))
    assert sum(map(len, forgiving.read(parts[0]))) == 100
    assert "19900 of the 20000 entries" in caplog.text
    with pytest.raises(DataLossError, match=r"entries from 1-0 on were trimmed"):
        query().partitions(start, end)  # and again after a restart


def test_deleting_after_planning_is_no_loss(store: Store[bytes], query: Query) -> None:
    add(store, 1, 1000)
    reader = query(maxEntriesPerTrigger=900)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(900))
    parts = reader.partitions(start, end)
    store.xdel("s", *(f"{n}-0" for n in range(5, 900, 3)))
    assert sum(len(found) for part in parts for found in reader.read(part)) == 900 - 299


def test_tasks_that_go_on_without_lost_entries_tell_the_driver(
    store: Store[bytes], query: Query
) -> None:
    add(store, 1, 1000)
    reader = query(failOnDataLoss=False, minPartitions=4)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, end)
    store.xtrim("s", maxlen=100, approximate=False)
    for _ in range(2):  # a task that runs again reports its loss once
        parts = pickle.loads(pickle.dumps(parts))
        rows = sum(len(found) for part in parts for found in reader.read(part))
        assert rows == 100
    reader.latestOffset(end, ReadAllAvailable())
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["s"]["entriesLost"] == 900
    reader.stop()


def test_one_deletion_ahead_does_not_hide_a_trim(store: Store[bytes], query: Query) -> None:
    add(store, 1, 1000)
    for limit in (400, 1000):
        reader = query(maxEntriesPerTrigger=limit)
        _, offset = batch(reader, reader.initialOffset())
        if limit == 1000:
            add(store, 1001, 1000)
        newest = store.xrevrange("s", count=1)[0].id
        store.xdel("s", newest)
        store.xtrim("s", maxlen=100, approximate=False)
        with pytest.raises(DataLossError, match=r"were trimmed before they were read"):
            batch(reader, offset)
        forgiving = query(failOnDataLoss=False)
        assert batch(forgiving, offset)[0]
        report = forgiving.reportLatestOffset()
        assert report is not None
        assert report["s"]["entriesLost"] >= 1
        assert report["s"]["entriesPlanned"] == 100


def test_a_stream_that_is_deleted_after_its_batch_was_logged(
    store: Store[bytes], query: Query
) -> None:
    for start_of in ("earliest", "latest"):  # with a position, and met later
        store.delete("s")
        if start_of == "earliest":
            add(store, 1, 10)
        reader = query(startingOffsets=start_of)
        start = reader.initialOffset()
        if start_of == "latest":
            add(store, 1, 10)
        end = reader.latestOffset(start, ReadAllAvailable())
        store.delete("s")
        for again in (False, True):
            if again:
                add(store, 1, 3)
            with pytest.raises(DataLossError, match=r"was deleted"):
                query().partitions(start, end)


def test_a_stream_met_later_that_is_trimmed_before_its_batch(
    store: Store[bytes], query: Query
) -> None:
    reader = query(startingOffsets="latest")
    start = reader.initialOffset()
    add(store, 1, 1000)
    end = through_spark(reader.latestOffset(start, ReadAllAvailable()))
    store.xtrim("s", maxlen=10, approximate=False)
    with pytest.raises(DataLossError, match=r"entries from 1-0 on were trimmed"):
        query().partitions(start, end)


# --- what others see ------------------------------------------------------------------------------


def test_progress_is_reported_and_mirrored_into_a_group(store: Store[bytes], query: Query) -> None:
    add(store, 1000, 10_000)
    reader = query(maxEntriesPerTrigger=4000, groupName="spark")
    _, offset = batch(reader, reader.initialOffset())
    latest = reader.reportLatestOffset()
    assert latest == {
        "s": {
            "id": "10999-0",
            "entriesBehind": 6000,
            "secondsBehind": 6.0,
            "entriesPlanned": 4000,
            "entriesLost": 0,
        }
    }
    for _ in range(2):  # made, then set
        reader.commit(offset)
    reader.stop()
    (group,) = store.xinfo_groups("s")
    assert (group["name"], group["last-delivered-id"]) == (b"spark", b"4999-0")
    assert (group["entries-read"], group["lag"], group["pending"]) == (4000, 6000, 0)


def test_random_lives_of_a_query(store: Store[bytes], query: Query) -> None:
    """With any appends, deletions and limits, each entry that stays is read once, in order."""
    rng = random.Random(7)
    next_ms, kept = 1, set[str]()
    found: list[str] = []
    offset = query().initialOffset()
    for _ in range(60):
        ids = add(store, next_ms, count := rng.randrange(0, 200)) if rng.random() < 0.7 else []
        next_ms += count + rng.randrange(1, 3) if ids else 0
        kept.update(ids)
        unread = sorted(kept - set(found), key=lambda one: int(one[:-2]))
        if unread and rng.random() < 0.3:
            gone = rng.sample(unread, min(len(unread), 5))
            store.xdel("s", *gone)
            kept.difference_update(gone)
        limit = rng.choice([{}, {"maxEntriesPerTrigger": rng.randrange(1, 150)}])
        read_now, offset = batch(query(minPartitions=rng.randrange(1, 4), **limit), offset)
        found += read_now
    for _ in range(3):
        read_now, offset = batch(query(), offset)
        found += read_now
    assert found == sorted(kept, key=lambda one: int(one[:-2]))
