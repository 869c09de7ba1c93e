"""Random lives of a store, with reads of Spark beside: each entry comes once, with its value."""

from __future__ import annotations

import json
import pickle
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import lit
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from spark.killed_jobs import Query
from spark.random_source import Life, Row, Rows
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import MissingSegmentError
from streamkeep.pipeline.data_source import StreamkeepSource
from streamkeep.pipeline.source import stores
from streamkeep.pipeline.source.losses import DataLossError
from streamkeep.pipeline.source.stores import StreamReplacedError
from test_properties.test_archive import Id, parse
from tiers import daily_or_all

SCHEMA = (
    StructType()
    .add("incarnation", LongType())
    .add("ms", LongType())
    .add("seq", LongType())
    .add("n", BinaryType())
    .add("stream", StringType())
)
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = (DataLossError, StreamReplacedError, MissingSegmentError)


def task(reader: Any, part: Any, rng: random.Random, between: Callable[[], object]) -> Rows:
    """Run a task of Spark, perhaps after an attempt that failed in the middle; return its rows."""
    for attempt in range(2):
        last = attempt or rng.random() < 0.7
        found: Rows = {}
        what = pickle.loads(pickle.dumps(part))
        for batch in reader.read(what):
            between()
            for row in batch.to_pylist():
                at = row["incarnation"], (row["ms"], row["seq"])
                assert at not in found, f"{at} comes twice"
                found[at] = row["n"]
            if not last:
                break
        if last:
            break
    return found


def life_of(
    open_store: Callable[..., Store[bytes]], seed: int, monkeypatch: pytest.MonkeyPatch
) -> Life:
    """Return a store that changes before each opening by a query, and is read in small pieces."""
    monkeypatch.setattr("streamkeep.pipeline.source.executor._CHUNK_BYTES", 1600)
    monkeypatch.setattr("streamkeep.arrow.batches.BATCH_ENTRIES", 16)
    rng = random.Random(seed)
    store = open_store(node_max_entries=rng.choice((3, 10)))
    life = Life(store, rng, deletes=rng.random() < 0.3)

    def reading(path: str) -> Store[bytes]:
        life.steps(1)
        return stores.reading(path)

    for module in ("plan", "stream_reader"):
        monkeypatch.setattr(f"streamkeep.pipeline.source.{module}.reading", reading)
    return life


def add(found: Rows, more: Rows) -> None:
    twice = found.keys() & more.keys()
    assert not twice, f"{twice} come twice"
    found |= more


def read_batch(life: Life, folder: Path) -> None:
    """Read a range at random while the store changes, and compare."""
    rng = life.rng
    source = rng.choice(("auto", "auto", "live", "archive"))
    strict = rng.random() < 0.5
    low, high = sorted(rng.randrange(990, life.next_ms + 5) for _ in range(2))
    given = {"path": str(life.store.path), "subscribePattern": ".*", "source": source}
    given["failOnDataLoss"] = str(strict)
    if rng.random() < 0.5:
        given["startingTimestamp"] = str(low)
        given["endingTimestamp"] = str(high)
    else:
        low, high = 0, 1 << 62
    if rng.random() < 0.5:
        given[rng.choice(("minPartitions", "maxRecordsPerPartition"))] = str(rng.randrange(1, 30))
    if rng.random() < 0.3:
        given["tailExport"] = str(folder / "export")
    made = StreamkeepSource(given)
    pinned = {at: value for at, value in life.rows(source).items() if low <= at[1][0] < high}
    keys = dict(life.keys)
    life.steps(2)
    found: Rows = {}
    try:
        reader: Any = made.reader(SCHEMA)
        if source == "archive":  # which also finds streams that were deleted
            reader.pins = tuple(pin for pin in reader.pins if pin.number in keys.values())
        parts = reader.partitions()
        life.steps(2)
        rng.shuffle(parts)
        for part in parts:
            add(found, task(reader, part, rng, lambda: life.steps(1)))
    except DataLossError:
        assert strict
        assert life.deletes or pinned.keys() - life.rows(source).keys()
        return
    except StreamReplacedError:
        assert set(keys.values()) & life.ended
        return
    except MissingSegmentError:  # of an export, which cannot know of a newer manifest
        assert life.gone or pinned.keys() & life.lost
        return
    assert found.items() <= pinned.items()
    there = life.rows(source)
    missing = pinned.keys() - found.keys()
    assert not (missing - life.gone if strict else missing & there.keys())


@pytest.mark.parametrize("seed", range(daily_or_all(6, 200)))
def test_batches_of_a_store_that_changes(
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life = life_of(open_store, seed, monkeypatch)
    for _ in range(15):
        life.steps(6)
        read_batch(life, tmp_path)


class Killed(Exception):
    """The driver of a query died."""


class Watched(Query):
    """A query whose store changes between any two steps, and whose driver may die at any."""

    def __init__(self, reading: Reading, **options: object) -> None:
        self.life, self.reading = reading.life, reading
        checkpoint = reading.folder / "checkpoint"
        super().__init__(str(self.life.store.path), checkpoint, SCHEMA, **options)
        initial = self.reader.initialOffset

        self.met: set[int] = set()  # streams of the offset at the beginning, which is in no log

        def begin() -> dict[str, Any]:
            offset = initial()
            self.met = {one["number"] for one in offset.get("streams", {}).values()}
            self.reading.forgiven |= self.reading.lost()  # is no loss of the query
            return offset

        self.reader.initialOffset = begin  # type: ignore[method-assign]

    def between(self) -> None:
        self.life.steps(1)
        if self.life.rng.random() < 0.02:
            raise Killed

    def _range(self, number: int) -> tuple[Any, Any]:
        before, planned = self.ends().keys(), (self.offsets / f"{number}").exists()
        start, end = super()._range(number)
        if start != end:
            if not planned and not self.reader.options.fail_on_data_loss:
                new = self.ends().keys() - before - self.met  # it was told what they had lost
                self.reading.forgiven |= {at for at in self.reading.lost() if at[0] in new}
            self.between()
        return start, end

    def write(self, number: int, parts: list[Any]) -> None:
        rows: Rows = {}
        for part in parts:
            self.between()
            add(rows, task(self.reader, part, self.life.rng, self.between))
        add(self.reading.found, rows)
        ends = self.ends()
        passed = {at for at in self.reading.lost() if at[0] in ends and at[1] <= ends[at[0]]}
        if self.reader.options.fail_on_data_loss:
            assert not passed
        else:  # an end of availableNow may be below what was lost, of which it was told as well
            told, following = self.ends("next", "last"), set(self.ends("next").items())
            lost = self.reading.lost() - following
            passed |= {at for at in lost if at[1] <= told.get(at[0], (0, 0))}
        self.reading.forgiven |= passed

    def ends(self, *parts: str) -> dict[int, Id]:
        """Return the positions in the checkpoint, or the first part of each that it has."""
        logged = sorted(self.offsets.iterdir(), key=lambda path: int(path.name))
        last = json.loads(logged[-1].read_text())[1] if logged else {}
        return {
            one["number"]: parse(next(one[part] for part in (*parts, "id") if part in one).encode())
            for one in last.get("streams", {}).values()
        }


class Reading:
    """Somebody who runs a query, again when it dies, and tells it to go on after a loss."""

    def __init__(self, life: Life, folder: Path) -> None:
        self.life, self.folder = life, folder
        self.source = life.rng.choice(("auto", "auto", "live"))
        self.found: Rows = {}
        self.forgiven: set[Row] = set()

    def lost(self) -> set[Row]:
        """Return the entries of present streams that the query cannot read any more."""
        life = self.life
        there = life.rows(self.source).keys() | self.found.keys() | self.forgiven | life.gone
        living = set(life.keys.values())
        return {at for at in life.added.keys() - there if at[0] in living}

    def run(self, strict: bool) -> None:
        """Run a query until it has read everything, or to an error, which must be right."""
        life, rng = self.life, self.life.rng
        options: dict[str, object] = {"failOnDataLoss": strict, "source": self.source}
        for name in ("maxEntriesPerTrigger", "maxBytesPerTrigger", "minPartitions"):
            if rng.random() < 0.3:
                options[name] = rng.randrange(1, 400)
        if rng.random() < 0.2:
            options["groupName"] = "spark"
        if rng.random() < 0.2:
            options["tailExport"] = self.folder / "export"
        query = Watched(self, **options)
        now = rng.random() < 0.2
        known = query.ends()
        error: Exception | None = None
        try:
            if now:
                query.reader.prepareForTriggerAvailableNow()
                self.life.steps(2)
            query.run(query.write)
        except Killed:
            return
        except REFUSED as why:
            error = why
        finally:
            query.reader.stop()
        if error is not None:
            dead = (known.keys() | query.met | query.ends().keys()) & life.ended
            assert strict or not isinstance(error, DataLossError)
            # Who met a stream was told of all that it had lost, also after the position of then.
            again = {at for at in life.lost if at[1] > known.get(at[0], at[1])}
            assert life.deletes or dead or again or self.lost(), error
            if strict:
                self.run(strict=False)
        elif strict and not now:
            assert not query.ends().keys() & life.ended
            assert not self.lost()

    def check(self) -> None:
        """Compare with the model what was read, after the end of all changes."""
        life = self.life
        life.frozen = True
        for _ in range(8):
            self.run(strict=False)
        assert self.found.items() <= life.added.items()
        assert life.rows(self.source).items() <= self.found.items()


@pytest.mark.parametrize("seed", range(daily_or_all(3, 200)))
def test_queries_on_a_store_that_changes(
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life = life_of(open_store, seed, monkeypatch)
    reading = Reading(life, tmp_path)
    for _ in range(daily_or_all(8, 15)):
        life.steps(6)
        reading.run(strict=life.rng.random() < 0.8)
    reading.check()


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_queries_that_are_stopped_and_whose_workers_die_write_each_row_once(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path, seed: int
) -> None:
    life, copy = Life(open_store(), random.Random(seed), deletes=True), open_store("copy")
    why: list[str] = []

    def dying(batches: Iterator[Any]) -> Iterator[Any]:
        """Pass rows on, in a worker that may be killed; nested, so that workers get it by value."""
        import os
        import random
        import signal

        def perhaps() -> None:
            if random.random() < 0.08:
                os.kill(os.getpid(), signal.SIGKILL)

        perhaps()
        for batch in batches:
            yield batch
            perhaps()

    def run(whole: bool) -> None:
        most = life.rng.randrange(5, 100)
        source = spark.readStream.format("streamkeep").option("subscribePattern", ".*")
        source = source.options(startingOffsets="earliest", failOnDataLoss=False, minPartitions=3)
        rows = source.option("maxEntriesPerTrigger", most).load(str(life.store.path))
        rows = rows.select("fields").withColumn("stream", lit("all"))
        if not whole:
            rows = rows.mapInArrow(dying, rows.schema)
        sink = rows.writeStream.format("streamkeep").trigger(availableNow=True)
        query = sink.option("checkpointLocation", str(tmp_path / "ck")).start(str(copy.path))
        try:
            while query.isActive and not whole:
                life.steps(2)
                time.sleep(life.rng.uniform(0, 0.4))
                if life.rng.random() < 0.1:
                    query.stop()
            query.awaitTermination()
        except StreamingQueryException as error:  # a task failed three times
            why.append(str(error))

    for _ in range(8):
        life.steps(8)
        run(whole=False)
    life.frozen = True
    run(whole=True)
    run(whole=True)
    known = ("exited unexpectedly", "crashed", "was deleted")
    assert all(any(text in one for text in known) for one in why), why
    values = [entry.pairs[0][1] for entry in copy.scan("all")]
    assert len(values) == len(set(values))
    assert set(life.rows().values()) <= set(values) <= set(life.added.values())
