"""Jobs in processes that are killed, without a JVM.

What Spark does for a job is little: it runs functions in worker processes, again when one dies, and
hands their results to the driver; for a streaming query it also keeps a log of offsets and one of
commits. Both are simulated here in a few lines, with real processes, so that a kill at every
failpoint costs milliseconds instead of the start of a JVM. Other tests check that Spark does so.

This module is also the program that forks drivers (`fork_server`): delta-rs cannot be used in a
fork of a process that has used it, so that one never does.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema

import streamkeep
from fork_server import serve
from spark.in_process import InProcess
from stopped import die_at
from streamkeep.arrow.batches import DEFAULT_SCHEMA
from streamkeep.engine.archive import restore as restore_engine
from streamkeep.engine.system import failpoints
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.distribution import packing
from streamkeep.pipeline.jobs import to_lake as to_lake_job
from streamkeep.pipeline.jobs.compact import compact
from streamkeep.pipeline.jobs.erase import erase
from streamkeep.pipeline.jobs.restore import restore
from streamkeep.pipeline.jobs.tail import append_batch
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.options import parse_read, parse_write
from streamkeep.pipeline.sink.identity import Batch
from streamkeep.pipeline.sink.writer import StreamkeepStreamWriter
from streamkeep.pipeline.source.reader import SlicePartition
from streamkeep.pipeline.source.stream_reader import StreamkeepStreamReader
from streamkeep.pipeline.store_fleet import live

ATTEMPTS: Final = 3
BATCH: Final = 700  # entries of a micro-batch
_SMALL: Final = 4 << 10  # of a partition, so that a job has several tasks
_SCHEMA: Final = DEFAULT_SCHEMA


@dataclass
class Plan:
    """What a driver is to do.

    Attributes:
        job: to-lake, compact, restore, erase, tail-delta or tail-store; fleet, whose `store` is the
            fleet; archive, whose `store` publishes there.
        failpoint: where the process is killed, at the passage number `passages`; "" for nowhere.
        in_worker: it is the process of a task, not the driver.
        attempts: how often that happens to each task.
        environment: with which an object store is reached. Its clients do not survive a fork, so
            the driver then runs the tasks itself.
    """

    job: str
    store: str
    target: str
    result: str
    failpoint: str = ""
    passages: int = 1
    in_worker: bool = False
    attempts: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


class TaskFailedError(Exception):
    """A task failed as often as it may."""


class LocalSpark(InProcess):
    """Runs each task in a process of its own, and again when that dies."""

    def __init__(self, begin: Callable[[int], None], rows: Any = None) -> None:
        super().__init__(rows)
        self._begin = begin

    def createDataFrame(self, rows: Any) -> LocalSpark:
        return LocalSpark(self._begin, rows)

    def collect(self) -> list[Any]:
        found = []
        for batch in self._rows.to_batches(max_chunksize=1):
            function = self._function
            packed = self.run(
                lambda function=function, batch=batch: pickle.dumps(  # type: ignore[misc]
                    [row for part in function(iter([batch])) for row in part.to_pylist()]
                ).hex()
            )
            found += [SimpleNamespace(**row) for row in pickle.loads(bytes.fromhex(packed))]
        return found

    def run(self, task: Callable[[], str]) -> str:
        pickled = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
        for attempt in range(ATTEMPTS):
            result = self._attempt(pickled, attempt)
            if result is not None:
                return result
        raise TaskFailedError(f"a task failed {ATTEMPTS} times")

    def _attempt(self, pickled: bytes, attempt: int) -> str | None:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                failpoints.disarm()
                self._begin(attempt)
                with os.fdopen(writer, "w") as out:
                    out.write(pickle.loads(pickled)())
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as source:
            result = source.read()
        return result if os.waitpid(child, 0)[1] == 0 else None


class Query:
    """A streaming query: a log of offsets, a log of commits, and the batch between them."""

    def __init__(self, store: str, checkpoint: Path, schema: Any = None, **options: object) -> None:
        given = {"path": store, "subscribePattern": ".*", "startingOffsets": "earliest"}
        given |= {name: str(value) for name, value in options.items()}
        schema = schema or from_arrow_schema(_SCHEMA)
        self.reader = StreamkeepStreamReader(parse_read(given), schema)
        self.offsets, self.commits = checkpoint / "offsets", checkpoint / "commits"
        for folder in (self.offsets, self.commits):
            folder.mkdir(parents=True, exist_ok=True)

    def run(self, write: Callable[[int, list[SlicePartition]], None]) -> int:
        """Run batches until there is nothing more; return how many entries' batches those were."""
        batches = 0
        number = len(list(self.offsets.iterdir())) - 1
        if number < 0 or (self.commits / f"{number}").exists():
            number += 1
        while True:
            start, end = self._range(number)
            if start == end:
                return batches
            write(number, self.reader.partitions(start, end))
            (self.commits / f"{number}").touch()
            self.reader.commit(end)
            batches += 1
            number += 1

    def _range(self, number: int) -> tuple[Any, Any]:
        """Return the offsets of a batch: those in the log, or new ones, which are logged."""
        path = self.offsets / f"{number}"
        if path.exists():
            start, end = json.loads(path.read_text())
            return start, end
        if number:
            start = json.loads((self.offsets / f"{number - 1}").read_text())[1]
        else:
            start = self.reader.initialOffset()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if start != end:
            draft = self.offsets.parent / f"{number}.draft"
            draft.write_text(json.dumps([start, end]))
            draft.replace(path)
        return start, end


def run_job(spark: Any, wanted: Plan) -> dict[str, Any]:
    """Run a job to its end; return what it says."""
    store, target = wanted.store, wanted.target
    if wanted.job.startswith("tail"):
        return {"entries": tail(spark, wanted)}
    if wanted.job == "archive":
        with streamkeep.open(store) as opened:
            return {"version": opened.archive(seal=True).published.version}
    if wanted.job == "fleet":
        return to_lake(spark, store, target, fleet=True).as_json()
    if wanted.job == "to-lake":
        return to_lake(spark, store, target, **wanted.options).as_json()
    if wanted.job == "compact":
        return compact(spark, target, **wanted.options).as_json()
    if wanted.job == "erase":
        return erase(spark, **wanted.options, store=store, lake=target).as_json()
    assert wanted.job == "restore"
    return restore(spark, target, store, **wanted.options).as_json()


def tail(spark: LocalSpark, wanted: Plan) -> int:
    checkpoint = Path(f"{wanted.target}.checkpoint")
    options = wanted.options
    given: dict[str, Any] = {"failOnDataLoss": options.get("fail_on_data_loss", True)}
    if "tail_export" in options:
        given["tailExport"] = options["tail_export"]
    most = options.get("max_entries", BATCH)
    query = Query(wanted.store, checkpoint, maxEntriesPerTrigger=most, **given)
    schema = from_arrow_schema(_SCHEMA)

    def to_delta(number: int, parts: list[SlicePartition]) -> None:
        batches = [batch for part in parts for batch in query.reader.read(part)]
        frame: Any = InProcess(pa.Table.from_batches(batches, _SCHEMA))
        append_batch(wanted.target, frame, Batch("query", number, number))

    def to_store(number: int, parts: list[SlicePartition]) -> None:
        options = {"path": wanted.target, "checkpointLocation": str(checkpoint)}
        identity = checkpoint / "metadata"  # as Spark makes it with the checkpoint
        if not identity.exists():
            draft = checkpoint / "metadata.draft"
            draft.write_text(json.dumps({"id": "4cb0f1a5-1a0e-43b0-9c58-a0c3a8ea2c5e"}))
            draft.replace(identity)
        writer = StreamkeepStreamWriter(parse_write(options), schema, False)
        reader = query.reader

        def task(part: SlicePartition, at: int) -> str:
            import types

            from streamkeep.pipeline.sink import writer as module

            context = types.SimpleNamespace(taskAttemptId=os.getpid, partitionId=lambda: at)
            module.TaskContext = types.SimpleNamespace(get=lambda: context)  # type: ignore
            message = writer.write(iter(reader.read(part)))
            return base64.b64encode(pickle.dumps(message)).decode()

        texts = [
            spark.run(lambda part=part, at=at: task(part, at))  # type: ignore[misc]
            for at, part in enumerate(parts)
        ]
        messages = [pickle.loads(base64.b64decode(text)) for text in texts]
        writer.commit(messages, number)

    return query.run(to_delta if wanted.job == "tail-delta" else to_store)


def work(wanted: Plan) -> None:
    """Be a driver, as planned; leave what the job said, or why it failed."""
    packing.MIN_PARTITION_BYTES = _SMALL  # type: ignore[misc]
    live.SLICE_BYTES = _SMALL // 2  # type: ignore[misc]
    to_lake_job.SLICE_BYTES = _SMALL // 2  # type: ignore[attr-defined]
    restore_engine._STEP_NODES = 2  # type: ignore[misc]

    def begin(attempt: int) -> None:
        if wanted.in_worker and wanted.failpoint and attempt < wanted.attempts:
            die_at(wanted.failpoint, wanted.passages)

    if wanted.failpoint and not wanted.in_worker:
        die_at(wanted.failpoint, wanted.passages)
    os.environ.update(wanted.environment)
    spark = InProcess() if wanted.environment else LocalSpark(begin)
    try:
        said = run_job(spark, wanted)
    except (StreamkeepError, TaskFailedError) as error:
        said = {"error": type(error).__name__, "text": str(error)}
    Path(wanted.result).write_text(json.dumps(said))


if __name__ == "__main__":
    serve(lambda wanted: work(Plan(**wanted)), lambda wanted: f"{wanted['result']}.err")
