"""Which entries micro-batches read: the reader that Spark drives, driven without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming import datasource
from pyspark.sql.types import LongType, StringType, StructType

from streamkeep.engine.api.store import Store
from streamkeep.pipeline.data_source import StreamkeepSource
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.source import triggers
from streamkeep.pipeline.source.losses import DataLossError
from streamkeep.pipeline.source.offsets import OffsetError
from streamkeep.pipeline.source.stores import StreamReplacedError
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


@pytest.fixture
def small(open_store: Callable[..., Store[bytes]]) -> Store[bytes]:
    return open_store("small", node_max_entries=10)


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


def progress(reader: StreamkeepStreamReader) -> dict[str, Any]:
    found = reader.reportLatestOffset()
    assert found is not None
    return found


def lost(reader: StreamkeepStreamReader) -> object:
    """Return how many entries of a stream the progress of a query says are lost."""
    return progress(reader)["s"]["entriesLost"]


def everything(reader: StreamkeepStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Return the offset behind all that there is."""
    return through_spark(reader.latestOffset(start, datasource.ReadAllAvailable()))


def rows_in(reader: Any, parts: Any = None) -> int:
    """Return how many entries a reader reads in its partitions, or in some."""
    chosen = reader.partitions() if parts is None else parts
    return sum(len(found) for part in chosen for found in reader.read(part))


def add(store: Store[bytes], first: int, count: int, key: str = "s") -> list[str]:
    ids = [f"{first + n}-0" for n in range(count)]
    store.xadd_many(key, [{"n": str(n)} for n in range(count)], ids=ids)
    return ids


def test_new_queries_begin_where_they_are_told(store: Store[bytes], query: Query) -> None:
    add(store, 1, 10)
    for starting, expected in (("latest", []), ("8-0", ["8-0", "9-0", "10-0"]), ("(9-0", ["10-0"])):
        reader = query(startingOffsets=starting)
        assert batch(reader, reader.initialOffset())[0] == expected


def test_a_limit_of_bytes(store: Store[bytes], query: Query) -> None:
    store.xadd_many("s", [{"f": "x" * 1000} for _ in range(100)])
    reader = query(maxBytesPerTrigger=10_000)
    assert isinstance(reader.getDefaultReadLimit(), datasource.ReadMaxBytes)
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
    ids, _ = batch(reader, reader.initialOffset())
    assert ids == [f"{n}-0" for n in (*range(1, 71), *range(1, 31))]


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


@pytest.mark.parametrize(
    ("limit", "kept", "what"),
    [
        (40, 30, "80 entries from 41-0 on were trimmed .* entry is 121-0;"),
        (100, 30, "20 entries after 100-0 were trimmed .* entry is 121-0;"),
        (100, 0, "50 entries after 100-0 were trimmed .* no entry remains"),
    ],
)
@pytest.mark.parametrize("source", ["auto", "live"])
def test_trimming_what_was_not_read_is_an_error(
    store: Store[bytes], query: Query, limit: int, kept: int, what: str, source: str
) -> None:
    add(store, 1, 100)
    reader = query(maxEntriesPerTrigger=limit, source=source)
    _, offset = batch(reader, reader.initialOffset())
    add(store, 101, 50)
    store.xtrim("s", maxlen=kept, approximate=False)
    with pytest.raises(DataLossError, match=what):
        batch(reader, offset)
    assert len(batch(query(failOnDataLoss=False, source=source), offset)[0]) == kept


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
    add(store, 1, 5000)
    reader = query()
    start = reader.initialOffset()
    end = everything(reader, start)
    forgiving = query(failOnDataLoss=False)
    parts, theirs = reader.partitions(start, end), forgiving.partitions(start, end)
    if later:
        add(store, 5001, later)
    store.xtrim("s", maxlen=100 + later, approximate=False)
    what = r"4900 of the 5000 entries from 0-1 to 5000-0 were trimmed after the read was planned"
    with pytest.raises(DataLossError, match=what):
        list(reader.read(parts[0]))
    assert sum(map(len, forgiving.read(theirs[0]))) == 100
    assert "4900 of the 5000 entries" in caplog.text
    with pytest.raises(DataLossError, match=r"entries from 1-0 on were trimmed"):
        query().partitions(start, end)  # and again after a restart


def test_a_deletion_does_not_hide_that_the_node_where_a_batch_begins_was_trimmed(
    small: Store[bytes], query: Query
) -> None:
    add(small, 1, 40)
    small.xdel("s", "35-0")
    reader = query(path=small.path, maxEntriesPerTrigger=5)
    _, start = batch(reader, reader.initialOffset())
    parts = reader.partitions(start, everything(reader, start))
    small.xtrim("s", maxlen=29)
    with pytest.raises(DataLossError, match=r"5 of the 34 entries"):
        rows_in(reader, parts)


def test_deleting_after_planning_is_no_loss(store: Store[bytes], query: Query) -> None:
    add(store, 1, 1000)
    start = query().initialOffset()
    for limit, deleted, left in ((850, range(5, 850, 3), 568), (1, [851], 0)):
        reader = query(maxEntriesPerTrigger=limit)
        end = reader.latestOffset(start, datasource.ReadMaxRows(limit))
        parts = reader.partitions(start, end)
        store.xdel("s", *(f"{n}-0" for n in deleted))
        assert rows_in(reader, parts) == left
        start = end


def test_erasing_archived_entries_is_no_loss(store: Store[bytes], query: Query) -> None:
    store.set_retention("s", archive=True)
    add(store, 1, 100)
    reader = query(maxEntriesPerTrigger=30)
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    end = everything(reader, start)
    add(store, 101, 100)
    store.xtrim("s", maxlen=10, approximate=False)
    store.archive()
    store.erase("s", "31-0", "50-0", "101-0")
    parts = reader.partitions(start, end)
    store.erase("s", "60-0")
    assert rows_in(reader, parts) == 67
    assert len(batch(reader, end)[0]) == 30
    assert len(read(reader, end, everything(reader, end))) == 99
    assert len(read(reader, {}, everything(reader, {}))) == 196


@pytest.mark.parametrize("archive", [False, True])
def test_erasing_whole_nodes_is_no_loss(small: Store[bytes], query: Query, archive: bool) -> None:
    small.set_retention("s", archive=archive)
    add(small, 1, 40 if archive else 10)
    reader = query(path=small.path, maxEntriesPerTrigger=10)
    _, offset = batch(reader, reader.initialOffset())
    add(small, 41 if archive else 11, 30)
    small.xtrim("s", maxlen=30)
    small.archive()
    erased = range(11, 21) if archive else range(21, 31)
    small.erase("s", *(f"{n}-0" for n in erased))
    expected = range(21, 31) if archive else range(11, 21)
    assert batch(reader, offset)[0] == [f"{n}-0" for n in expected]


def test_tasks_that_go_on_without_lost_entries_tell_the_driver(
    store: Store[bytes], query: Query
) -> None:
    add(store, 1, 1000)
    reader = query(failOnDataLoss=False, minPartitions=4)
    start = reader.initialOffset()
    end = everything(reader, start)
    parts = reader.partitions(start, end)
    store.xtrim("s", maxlen=100, approximate=False)
    for _ in range(2):  # a task that runs again reports its loss once
        parts = pickle.loads(pickle.dumps(parts))
        assert rows_in(reader, parts) == 100
    reader.latestOffset(end, datasource.ReadAllAvailable())
    assert lost(reader) == 900


@pytest.mark.parametrize(
    ("there", "deleted", "kept", "what"),
    [
        (9, "50-0", 48, "1 entries after 9-0"),
        (20, "70-0", 20, "entries from 11-0 on"),
        (11, "11-0", 20, "entries from 11-0 on"),
    ],
)
def test_one_deletion_ahead_does_not_hide_a_trim(
    small: Store[bytes], query: Query, there: int, deleted: str, kept: int, what: str
) -> None:
    reader = query(path=small.path, maxEntriesPerTrigger=10)
    add(small, 1, there)
    _, offset = batch(reader, reader.initialOffset())
    add(small, there + 1, 50)
    small.xdel("s", deleted)
    small.xtrim("s", maxlen=kept)
    with pytest.raises(DataLossError, match=f"{what} were trimmed"):
        batch(reader, offset)


def test_deletions_do_not_hide_a_trim_in_a_stream_that_a_query_meets(
    small: Store[bytes], query: Query
) -> None:
    add(small, 1, 100)
    small.xtrim("s", maxlen=90)
    small.xdel("s", *(f"{n}-0" for n in range(40, 100, 2)))
    with pytest.raises(DataLossError, match=r"meets now: 10 of its entries were trimmed"):
        everything(query(path=small.path), {})


def test_a_stream_that_is_trimmed_or_deleted_after_its_batch_was_logged(
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
        end = everything(reader, start)
        store.xtrim("s", maxlen=1, approximate=False)
        with pytest.raises(DataLossError, match=r"9 entries from 1-0 on were trimmed"):
            query().partitions(start, end)
        store.delete("s")
        for again in (False, True):
            if again:
                add(store, 1, 3)
            with pytest.raises(DataLossError, match=r"was deleted"):
                query().partitions(start, end)


@pytest.mark.parametrize("limit", [{}, {"maxEntriesPerTrigger": 10}], ids=["whole", "limited"])
def test_what_was_trimmed_after_the_archive_was_turned_off_is_missed(
    store: Store[bytes], query: Query, limit: dict[str, int]
) -> None:
    """Older entries that are archived, and not read, hide it from who looks at the first one."""
    store.set_retention("s", archive=True)
    add(store, 1, 100)
    strict, lenient = query(**limit), query(failOnDataLoss=False, **limit)
    start = strict.initialOffset()
    store.xtrim("s", maxlen=70, approximate=False)
    store.archive()
    store.set_retention("s", archive=False)
    store.xtrim("s", maxlen=40, approximate=False)
    with pytest.raises(DataLossError, match="30 entries after 1-0 were trimmed"):
        for _ in range(9):
            start = batch(strict, start)[1]
    found: list[str] = []
    start = lenient.initialOffset()
    for _ in range(9):
        ids, start = batch(lenient, start)
        found += ids
    assert found == [f"{n}-0" for n in (*range(1, 31), *range(61, 101))]


@pytest.mark.parametrize(("limit", "way", "gone"), [(5, "erase", "6-0"), (20, "xdel", "35-0")])
def test_an_archived_node_does_not_hide_what_was_trimmed_behind_it(
    small: Store[bytes], query: Query, limit: int, way: str, gone: str
) -> None:
    small.set_retention("s", archive=True)
    add(small, 1, 20)
    reader = query(path=small.path, maxEntriesPerTrigger=limit)
    _, offset = batch(reader, reader.initialOffset())
    small.xtrim("s", maxlen=0)
    small.archive()
    small.set_retention("s", archive=False)
    add(small, 21, 20)
    small.xtrim("s", maxlen=10)
    getattr(small, way)("s", gone)
    with pytest.raises(DataLossError, match="10 entries"):
        batch(reader, offset)


def test_the_progress_has_the_number_of_lost_entries(store: Store[bytes], query: Query) -> None:
    add(store, 1, 1000)
    store.xtrim("s", minid="101-0", approximate=False)  # before the query, so no loss of it
    reader = query(maxEntriesPerTrigger=150, failOnDataLoss=False)
    _, offset = batch(reader, reader.initialOffset())
    store.xtrim("s", minid="401-0", approximate=False)
    for _ in range(2):  # a batch that is planned again reports its loss once
        ids, end = batch(reader, offset)
        assert (ids[0], lost(reader)) == ("401-0", 150)
    store.xdel("s", "560-0", "905-0")
    store.xtrim("s", minid="701-0", approximate=False)
    batch(reader, end)
    assert lost(reader) == 150 + 150  # 560-0 was in a node that is gone, 905-0 was not
    store.delete("s")
    batch(reader, end)
    assert lost(reader) == 150 + 450
    with pytest.raises(DataLossError, match=r"; 450 entries from 551-0 on, or more, were not read"):
        batch(query(), end)


def test_a_stream_that_was_trimmed_before_a_query_met_it(
    store: Store[bytes], query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    strict = query(startingOffsets="latest", subscribePattern=".*")
    offset = strict.initialOffset()
    add(store, 1, 1000)
    store.xdel("s", "500-0", "905-0")
    store.xtrim("s", minid="701-0", approximate=False)
    with pytest.raises(DataLossError, match=r"meets now: 700 of .* remaining entry is 701-0"):
        batch(strict, offset)
    for limit in ({}, {"maxEntriesPerTrigger": 100}):
        reader = query(
            startingOffsets="latest", subscribePattern=".*", failOnDataLoss=False, **limit
        )
        ids, end = batch(reader, offset)
        assert (ids[0], lost(reader)) == ("701-0", 700)
        batch(reader, end)
        assert lost(reader) == 700
    store.delete("s")
    add(store, 1, 100)
    store.xdel("s", *(f"{n}-0" for n in (*range(1, 10), *range(20, 30))))  # is no loss
    assert len(batch(strict, offset)[0]) == 81


def test_deleting_live_nodes_is_no_loss_of_a_query_on_the_archive(
    open_store: Callable[..., Store[bytes]], query: Query
) -> None:
    store = open_store("archiving", node_max_entries=7)
    reader = query(path=store.path, source="archive")
    store.set_retention("s", archive=True)
    expected = add(store, 1, 100)
    store.xtrim("s", maxlen=30, approximate=False)
    store.archive()
    found, offset = batch(reader, reader.initialOffset())
    store.xdel("s", *expected[80:])
    offsets: list[dict[str, Any]] = [{}, offset]  # of a query that meets it, and of this one
    for maxlen in (1, 0):
        store.xtrim("s", maxlen=maxlen, approximate=False)
        store.archive()
        for at, offset in enumerate(offsets):
            more, offsets[at] = batch(reader, offset)
            found += more if at else []
    store.xtrim("s", maxlen=0, approximate=False)
    assert found == expected[: len(found)]
    assert len(found) == 80


def test_a_stream_that_was_empty_when_the_query_began(store: Store[bytes], query: Query) -> None:
    for starting in ("latest", "earliest"):
        store.delete("s")
        store.xgroup_create("s", "g", "$", mkstream=True)
        reader = query(startingOffsets=starting)
        offset = reader.initialOffset()
        assert batch(reader, offset)[0] == []
        add(store, 1, 1000)
        store.xtrim("s", maxlen=10, approximate=False)
        with pytest.raises(DataLossError, match=r"990 entries after 0-0 were trimmed"):
            batch(reader, offset)
        forgiving = query(startingOffsets=starting, failOnDataLoss=False)
        assert (len(batch(forgiving, offset)[0]), lost(forgiving)) == (10, 990)


@pytest.mark.parametrize("limit", [{}, {"maxEntriesPerTrigger": 40}])
def test_another_store_under_the_same_path_is_noticed(
    open_store: Callable[..., Store[bytes]], query: Query, limit: dict[str, int], tmp_path: Path
) -> None:
    reader_of = partial(query, path=tmp_path / "here", **limit)
    one, other = open_store("one"), open_store("other")
    (tmp_path / "here").symlink_to(one.path)
    expected = add(one, 1, 100)
    add(other, 1, 100)
    strict, forgiving, other_query = reader_of(), *(reader_of(failOnDataLoss=False) for _ in "12")
    ids, offset = batch(strict, strict.initialOffset())
    assert ids == expected[: limit.get("maxEntriesPerTrigger", 100)]
    planned = through_spark(strict.latestOffset({}, strict.getDefaultReadLimit()))
    parts, theirs = strict.partitions({}, planned), other_query.partitions({}, planned)
    (tmp_path / "here").unlink()
    (tmp_path / "here").symlink_to(other.path)
    with pytest.raises(DataLossError, match=f"from store {one.uuid}, and now store {other.uuid}"):
        batch(strict, offset)
    with pytest.raises(DataLossError, match="or its store was exchanged, after a batch"):
        strict.partitions({}, planned)
    with pytest.raises(StreamReplacedError, match=f"now store {other.uuid} is"):
        list(strict.read(parts[0]))
    assert list(other_query.read(theirs[0])) == []
    ids, offset = batch(forgiving, offset)
    assert ids == expected[: len(ids)]
    assert lost(forgiving) == max(1, 100 - len(ids))
    assert batch(strict, offset)[1]["store"] == other.uuid


@pytest.mark.parametrize("how", ["backup", "xsetid"])
def test_a_stream_that_goes_back_in_time_is_noticed(
    store: Store[bytes], query: Query, how: str
) -> None:
    add(store, 1, 1000)
    reader = query(maxEntriesPerTrigger=500)
    _, middle = batch(reader, reader.initialOffset())
    _, end = batch(reader, middle)
    planned = through_spark(end)
    if how == "xsetid":
        store.xtrim("s", maxlen=0, approximate=False)
        store.xsetid("s", "5-0")
        add(store, 10, 100)
    else:  # fewer entries than there were, under higher IDs
        store.xtrim("s", maxlen=500, approximate=False)
        store.xsetid("s", "1200-0", entries_added=900)
    for offset in (middle, end):
        with pytest.raises(DataLossError, match=r"gone back in time: it had 1000 entries added"):
            batch(query(), offset)
    with pytest.raises(DataLossError, match=r"gone back in time"):
        query().partitions(middle, planned)
    forgiving = query(failOnDataLoss=False)
    ids, offset = batch(forgiving, end)
    assert (ids, lost(forgiving)) == ([], 1)
    assert batch(query(), offset) == ([], offset)  # it is reported once
    later = add(store, 200 if how == "xsetid" else 2000, 3)
    assert batch(query(), offset)[0] == later


def test_a_query_that_is_to_start_where_entries_were_trimmed(
    store: Store[bytes], query: Query
) -> None:
    add(store, 1, 1000)
    store.xtrim("s", minid="601-0", approximate=False)
    for starting in ("100-0", "(599-0", '{"s": "1-0"}'):
        reader = query(startingOffsets=starting, failOnDataLoss=False)
        with pytest.raises(DataLossError, match=r"has lost 600 entries .* entry is 601-0; next"):
            query(startingOffsets=starting).initialOffset()
        ids, _ = batch(reader, reader.initialOffset())
        assert (ids[0], lost(reader)) == ("601-0", 600)
        options = {"path": str(store.path), "subscribe": "s", "startingOffsets": starting}
        with pytest.raises(DataLossError, match="has lost 600 entries"):
            StreamkeepSource(options).reader(SCHEMA)
        found = StreamkeepSource({**options, "failOnDataLoss": "false"}).reader(SCHEMA)
        assert rows_in(found) == 400
    for starting in ("601-0", "(601-0", "0", "earliest", "2000-0"):
        query(startingOffsets=starting).initialOffset()
    del reader
    made = StreamkeepStreamReader(
        parse_read({"path": str(store.path), "subscribe": "s", "startingTimestamp": "100"}), SCHEMA
    )
    assert batch(made, made.initialOffset())[0][0] == "601-0"


def test_a_batch_that_is_trimmed_between_load_and_query(store: Store[bytes]) -> None:
    add(store, 1, 1000)
    options = {"path": str(store.path), "subscribe": "s"}
    sources = [StreamkeepSource(options) for _ in range(2)]
    forgiving = StreamkeepSource({**options, "failOnDataLoss": "false"})
    store.xdel("s", "5-0", "999-0")
    (reader, late), other = (one.reader(SCHEMA) for one in sources), forgiving.reader(SCHEMA)
    assert rows_in(reader) == 998
    store.xtrim("s", maxlen=100, approximate=False)
    with pytest.raises(DataLossError, match=r"900 of the 1000 entries .* were trimmed after"):
        late.partitions()
    assert rows_in(other) == 100


def test_an_offset_of_another_version_is_refused(store: Store[bytes], query: Query) -> None:
    add(store, 1, 10)
    for offset in ({"s": {"number": 1, "id": "5-0"}}, {"store": "", "streams": {"s": {}}}):
        with pytest.raises(OffsetError, match=r"of another version .* begin with a new checkpoint"):
            query().latestOffset(offset, datasource.ReadAllAvailable())


@pytest.mark.parametrize("exported", [False, True])
def test_what_is_trimmed_while_a_batch_is_planned_is_missed_or_read(
    store: Store[bytes],
    query: Query,
    exported: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add(store, 1, 1000)
    reader = query(**({"tailExport": tmp_path / "export"} if exported else {}))
    start = reader.initialOffset()
    end = everything(reader, start)
    plain = triggers.check_nothing_trimmed

    def check(*args: Any) -> None:
        plain(*args)
        store.xtrim("s", maxlen=100, approximate=False)

    monkeypatch.setattr(triggers, "check_nothing_trimmed", check)
    if exported:
        assert len(read(reader, start, end)) == 1000
    else:
        with pytest.raises(DataLossError, match=r"900 of the 1000 entries"):
            read(reader, start, end)


@pytest.mark.parametrize("now", [False, True])  # a query that ends at what was there
def test_a_stream_that_is_renamed_is_read_on_under_its_new_key(
    store: Store[bytes], query: Query, now: bool
) -> None:
    expected = add(store, 1, 12)
    options = {"path": str(store.path), "subscribe": "s"}
    loaded = StreamkeepSource(options).reader(SCHEMA)
    reader = query(subscribePattern="[st]", maxEntriesPerTrigger=4)
    if now:
        reader.prepareForTriggerAvailableNow()
    offset, found = reader.initialOffset(), list[str]()
    for _ in range(4):
        end = through_spark(reader.latestOffset(offset, reader.getDefaultReadLimit()))
        store.rename("s", "t")
        parts = reader.partitions(offset, end)
        store.rename("t", "s")
        store.rename("s", "t")
        add(store, 1, 5, "s")  # not the stream that was planned
        found += [
            one for part in parts for rows in reader.read(part) for one in rows[1].to_pylist()
        ]
        store.delete("s")
        offset = end
        assert rows_in(loaded) == 12
        store.rename("t", "s")
    assert found == expected
    single = query(subscribe="x")
    store.rename("s", "x")
    offset = everything(single, {})
    store.rename("x", "y")
    with pytest.raises(DataLossError, match=r"renamed to 'y', which the query does not read"):
        everything(single, offset)
    assert everything(query(subscribe="x", failOnDataLoss=False), offset) == {}


def test_a_subscribed_stream_that_is_not_there_is_named(
    store: Store[bytes], query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    add(store, 1, 10, "orders")
    reader = query(subscribe="orders,order,x")
    ids, offset = batch(reader, reader.initialOffset())
    assert len(ids) == 10
    assert "no stream 'order'; did you mean orders? (the query reads it from" in caplog.text
    assert "no stream 'x'; it has 1 others" in caplog.text
    found = progress(reader)
    assert (found["x"]["id"], found["order"]["entriesBehind"]) == (None, 0)
    assert add(store, 1, 3, "x") == batch(reader, offset)[0]


def test_progress_is_reported_and_mirrored_into_a_group(store: Store[bytes], query: Query) -> None:
    add(store, 1000, 10_000)
    reader = query(maxEntriesPerTrigger=4000, groupName="spark")
    _, offset = batch(reader, reader.initialOffset())
    found = progress(reader)["s"]
    names = ("id", "entriesBehind", "secondsBehind", "entriesPlanned", "entriesLost")
    assert [found[name] for name in names] == ["10999-0", 6000, 6.0, 4000, 0]
    for _ in range(2):  # made, then set
        reader.commit(offset)
    reader.stop()
    (group,) = store.xinfo_groups("s")
    assert (group["name"], group["last-delivered-id"]) == (b"spark", b"4999-0")
    assert (group["entries-read"], group["lag"], group["pending"]) == (4000, 6000, 0)
