"""The common parts of all jobs: their report, and the distribution of their work.

A job makes its plan on the driver and ends there with one commit. Between the two, `run_units`
sends units of work to Spark's workers, which read and write files themselves and return a few facts
each. Entries never pass through the JVM; Spark provides distribution, retries and monitoring. That
took a third of the time of a DataFrame of entries that Spark writes.

A unit may run twice (a retry, a speculative task), and that must be harmless: it writes files under
unique names, which are valid only after the driver has committed them.
"""

from __future__ import annotations

import pickle
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.distribution.quick_ack import QuickAckCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Unit = TypeVar("Unit")
Result = TypeVar("Result")

Progress = Callable[[int, int], None]  # (units done, of)

_UNITS: Final = pa.schema([pa.field("number", pa.int64()), pa.field("unit", pa.binary())])
_RESULT: Final = pa.schema([pa.field("number", pa.int64()), pa.field("result", pa.binary())])
_POLL_S: Final = 0.2
_OURS: Final = re.compile(r"^streamkeep\.\S+: (.+)$", re.MULTILINE)


class TaskError(StreamkeepError):
    """A task of a job failed in all the tries that Spark gives it."""


@dataclass(slots=True)
class Report:
    """The result of a job.

    Attributes:
        job: its name on the command line.
        entries: the number of processed entries.
        files: the number of written files.
        size_bytes: the size of these files.
        seconds: the duration of the job.
        details: more values by name; JSON shows them unchanged.
        problems: the problems that the job has found, one line each.
    """

    job: str
    entries: int = 0
    files: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "type": "summary",
            "job": self.job,
            "entries": self.entries,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            **self.details,
            "problems": self.problems,
        }


@contextmanager
def timed(job: str) -> Iterator[Report]:
    """Provide the report of a job, and set its duration when the block ends."""
    report = Report(job)
    start = time.monotonic()
    try:
        yield report
    finally:
        report.seconds = time.monotonic() - start


def cores_of(spark: SparkSession) -> int:
    """Return how many cores share the work; 0 if only those of this machine are known."""
    context = getattr(spark, "_sc", None)  # Spark Connect has none
    return 0 if context is None else int(context.defaultParallelism)


def run_units(
    spark: SparkSession,
    units: Sequence[Unit],
    work: Callable[[Unit], list[Result]],
    progress: Progress | None = None,
) -> list[Result]:
    """Run `work` for each unit on Spark's workers; return the results of all of them.

    Args:
        units: one task each, so the caller packs small ones together. They are pickled.
        work: returns a few facts, which are pickled. Workers must be able to import it.
        progress: called on the driver from time to time.

    Raises:
        TaskError: a worker failed; the message has its error.
    """
    if not units:
        return []
    count = len(units)
    packed = [pickle.dumps(unit) for unit in units]
    try:
        with _ProgressThread(spark, count, progress):
            if getattr(spark, "_sc", None) is not None:

                def each(mine: Iterable[bytes]) -> Iterator[Result]:
                    for one in mine:
                        yield from work(pickle.loads(one))

                parts = spark.sparkContext.parallelize(packed, count)
                return list(parts.mapPartitions(QuickAckCall(each)).collect())

            # Spark Connect has no RDDs. The units are rows of a DataFrame.
            def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    values = (column.to_pylist() for column in batch.columns)
                    for number, unit in zip(*values, strict=True):
                        found = [pickle.dumps(one) for one in work(pickle.loads(unit))]
                        columns = {"number": [number] * len(found), "result": found}
                        yield pa.RecordBatch.from_pydict(columns, schema=_RESULT)

            table = pa.table({"number": range(count), "unit": packed}, schema=_UNITS)
            frame = spark.createDataFrame(table).repartition(count)
            frame = frame.mapInArrow(QuickAckCall(rows), "number bigint, result binary")
            done = sorted(frame.collect(), key=lambda row: row.number)
            return [pickle.loads(row.result) for row in done]
    except Exception as error:  # py4j's class has no types
        ours = _OURS.findall(str(error))
        if not ours:
            raise  # an error of Spark itself
        raise TaskError(f"on a worker: {ours[-1]}") from error


class _ProgressThread:
    """Reports to `progress` how many tasks of the jobs that begin in its block have ended."""

    def __init__(self, spark: SparkSession, count: int, progress: Progress | None) -> None:
        # Spark Connect has no context.
        self._context = getattr(spark, "_sc", None) if progress is not None else None
        self._count = count
        self._progress = progress
        self._group = uuid.uuid4().hex
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        if self._context is not None:
            self._context.setJobGroup(self._group, "streamkeep")
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        if self._context is not None:
            self._ended.set()
            self._thread.join()
            self._context.setLocalProperty("spark.jobGroup.id", None)
        if self._progress is not None and error == (None, None, None):
            self._progress(self._count, self._count)

    def _watch(self) -> None:
        assert self._context is not None
        tracker = self._context.statusTracker()
        reported = -1
        while not self._ended.wait(_POLL_S):
            done = 0
            for job in tracker.getJobIdsForGroup(self._group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    state = tracker.getStageInfo(stage)
                    done += state.numCompletedTasks if state is not None else 0
            assert self._progress is not None
            if done != reported:
                reported = done
                self._progress(min(done, self._count), self._count)
