"""spark ...: the jobs of the data pipeline, on Spark."""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click

from streamkeep.format import quoting
from streamkeep.format.humanize import count_text, entries_text, size_text
from streamkeep.tools.base import arguments, output
from streamkeep.tools.base.arguments import From, Ms, Positive, StorePath, To, Yes
from streamkeep.tools.base.command import group_command
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import confirm_loss, note_opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamkeep.pipeline.distribution.units import Report


@group_command()
def spark() -> None:
    """Run jobs on Spark: build a lake, compact, audit, erase, report.

    Needs the extra `spark`, which brings Spark, and a Java for machines without one. Without it,
    each command says how to install it.
    A LAKE is a Delta table of Parquet files, one row per entry: a path, or a URI such as
    s3://bucket/lake, with AWS_ACCESS_KEY_ID and so on in the environment. The store stays on a disk
    of the host on which the command runs.

    On a cluster: --master names it, --ship-code or --conf spark.archives=... sends the code there,
    and --tail-export names a folder that all hosts can reach, for live entries.

    Example, from a store to a lake and a report:
      streamkeep spark to-lake orders.store orders.lake
      streamkeep spark audit orders.store --lake orders.lake
      streamkeep spark report orders.store --output report
    """


_URI: Final = re.compile(r"[a-z][a-z0-9]+:/")

FailOnDataLoss = Annotated[
    bool, "Refuse a stream of which entries were lost before they could be read."
]
TailExport = Annotated[
    str,
    "(FOLDER): For executors on other hosts: a folder for entries in no segment, during the job.",
]
Staging = Annotated[
    str,
    "(FOLDER): For executors on other hosts: a folder for their results, which the driver reads.",
]


@dataclass
class Where:
    """Where Spark runs, and its settings.

    Args:
        master: Where Spark runs: all cores of this machine, or spark://host:port and so on.
        ship_code: Send this package to executors that do not have it.
        conf (NAME=VALUE): A setting of Spark; may be given again.
    """

    master: str = "local[*]"
    ship_code: bool = False
    conf: tuple[str, ...] = ()


@dataclass
class Chosen:
    """The streams of a job.

    Args:
        streams (--stream KEY): Take this stream; may be given again. All without it.
        pattern (REGEX): Take the streams whose whole key this matches.
    """

    streams: tuple[bytes, ...] = ()
    pattern: str | None = None

    def options(self) -> dict[str, Any]:
        from streamkeep.arrow.keys import key_text

        if self.streams and self.pattern is not None:
            raise click.UsageError("give --stream or --pattern, not both")
        return {"streams": [*map(key_text, self.streams)] or None, "pattern": self.pattern}


# --- a job ---------------------------------------------------------------------------------------


@contextmanager
def running(where: Where) -> Iterator[SparkSession]:
    from streamkeep.pipeline.spark_session.start import QUIET_JVM, missing, session

    conf: dict[str, object] = {"spark.driver.extraJavaOptions": QUIET_JVM}
    for setting in where.conf:
        name, found, value = setting.partition("=")
        if not found or not name:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="--conf")
        conf[name] = value

    started = session(
        where.master, fast_start=where.master.startswith("local"), ship_code=where.ship_code, **conf
    )
    of_spark = signal.signal(signal.SIGINT, _interrupted)  # which calls the JVM, in a call of it
    try:
        yield started
    except ModuleNotFoundError as error:
        raise missing(error) from error
    finally:
        started.stop()
        signal.signal(signal.SIGINT, of_spark)
        logging.disable(logging.NOTSET)


def _interrupted(number: int, frame: object) -> None:
    """End the command; py4j would log the traceback of the call that this breaks off."""
    logging.disable()  # with the root logger
    raise KeyboardInterrupt


def check_store(path: Path) -> str:
    """Report a problem of a store before Spark is started, which takes seconds; return its path."""
    from streamkeep.engine.api.store import Store

    if _URI.match(str(path)) and not path.exists():  # one slash of it is gone by now
        raise Failure(
            f"{path}: a store must be on a disk of the host on which the command runs; URIs are "
            "for lakes, --tail-export and --staging"
        )
    note_opened(path)  # a command may have several: the error is about this one
    Store(path, readonly=True, create=False).close()
    return str(path)


def check_lake(lake: str) -> None:
    """Report a problem of a lake before Spark is started."""
    with suppress(ImportError):  # `running` reports a missing extra
        from streamkeep.pipeline.lake.files import NoSuchLakeError
        from streamkeep.pipeline.lake.lake import Lake

        try:
            Lake.open(lake)
        except NoSuchLakeError as error:
            code = type(error).__name__
            raise Failure(str(error), status=Exit.MISSING, code=code) from error


def check_both(store_path: Path | None, lake: str | None) -> str | None:
    """Report a problem of a store or a lake, of those that were named; return the store's path."""
    store = None if store_path is None else check_store(store_path)
    if lake is not None:
        check_lake(lake)
    return store


def run(at: Where, name: str, /, *args: Any, steps: bool = True, **options: Any) -> Report:
    """Start Spark, and run a job of `streamkeep.pipeline`; its options have the names of ours."""
    with running(at) as session, ExitStack() as stack:
        if steps:
            options["progress"] = stack.enter_context(output.progress(name, "steps"))
        job = getattr(import_module(f"streamkeep.pipeline.jobs.{name}"), name)
        report: Report = job(session, *args, **options)
    return report


def tell(report: Report, summary: str) -> None:
    """Print what a job did; end with the status for damage if it found a problem."""
    for problem in report.problems:
        output.item("problem", problem, problem=problem)
    facts = report.as_json()
    del facts["type"], facts["job"]
    output.total(f"{summary}, in {output.span_text(report.seconds)}", **facts)
    if report.problems:
        raise click.exceptions.Exit(Exit.DAMAGED)


@spark.command("to-lake")
def to_lake(
    places: tuple[str, ...],
    *,
    fleet: str | None = None,
    chosen: Chosen,
    columns: str | None = None,
    fail_on_data_loss: FailOnDataLoss = True,
    tail_export: TailExport | None = None,
    follow: bool = False,
    every: Ms = 60_000,
    at: Where,
) -> None:
    """Copy new entries into a lake, archived and live ones.

    Each run continues where the last one ended, and all of its entries become visible at once. If
    it is killed, run it again: no entry is left out, and none comes twice. A store or stream that
    cannot be copied is listed, and all others are copied.

    Examples:
      streamkeep spark to-lake orders.store orders.lake
      streamkeep spark to-lake orders.store orders.lake --columns 'sku int, note string'
      streamkeep spark to-lake orders.store orders.lake --follow --every 5m
      streamkeep spark to-lake --fleet s3://bucket/fleet s3://bucket/lake

    Exit status: 0  all streams were copied
                 4  some were not: they are listed

    Args:
        places ([STORE] LAKE):
        fleet (URI): Copy all stores whose archives are below this URI, or that are in this folder.
        columns (DDL): Fields that get columns of their own: 'sku int, price double'.
        follow: Continue until interrupted, round after round.
        every: Begin a round this often, with --follow.
    """
    *stores, lake = places
    if len(stores) != (0 if fleet else 1):
        expected = "LAKE alone: --fleet names the stores" if fleet else "STORE and LAKE"
        raise click.UsageError(f"{len(places)} arguments, expected {expected}")
    if fleet is not None:
        arguments.refuse_options("cannot be used with --fleet", "tail_export")
    options = chosen.options() | {"fleet": fleet is not None, "tail_export": tail_export}
    options["fail_on_data_loss"] = fail_on_data_loss
    if not follow:
        arguments.refuse_options("needs --follow", "every")
    for store in stores:
        check_store(Path(store))
    with suppress(ImportError):  # `running` reports a missing extra
        from streamkeep.pipeline.storage.places import check, plain

        check(plain(lake))
    with running(at) as session:
        from streamkeep.pipeline.jobs import to_lake as jobs

        if columns is not None:
            options["columns"] = jobs.promoted_columns(session, columns)
        found: list[str] = []
        while True:
            began = time.monotonic()
            with output.progress("to-lake", "steps") as advance:
                place = fleet or stores[0]
                report = jobs.to_lake(session, place, lake, progress=advance, **options)
            if follow:  # one bad stream must not end it
                known, found = found, report.problems
                for problem in found:
                    if problem not in known:
                        output.note(problem)
                report.problems = []
            absent = report.details["absent"]
            gone = f"; {entries_text(absent)} gone before they could be copied" if absent else ""
            size = f"{count_text(report.files, 'file')} of {size_text(report.size_bytes)}"
            if not follow or report.entries:
                tell(report, f"{lake}: {entries_text(report.entries)} more, in {size}{gone}")
            if not follow:
                return
            time.sleep(max(0.0, began + every / 1000 - time.monotonic()))


@spark.command("compact")
def compact(
    lake: str, *, target: Positive = 128, keep: Ms = 604_800_000, fill: bool = False, at: Where
) -> None:
    """Merge small files of a lake, and remove old ones.

    The entries stay the same. Readers see either all old files or all new ones.

    Example:
      streamkeep spark compact orders.lake

    Args:
        target (MIB): Files of this size are not merged.
        keep: Keep replaced files so long, in whole hours, for readers of older versions and for
            running jobs.
        fill: Write all files again that lack columns which `to-lake --columns` added later.
    """
    hours, rest = divmod(keep, 3_600_000)
    if rest:
        raise click.BadParameter("whole hours, such as 12h or 7d", param_hint="--keep")
    check_lake(lake)
    report = run(at, "compact", lake, target_bytes=target << 20, retention_hours=hours, fill=fill)
    replaced = count_text(report.details["files_replaced"], "file")
    before = size_text(report.details["bytes_replaced"])
    done = f"{replaced} of {before} became {report.files:,} of {size_text(report.size_bytes)}"
    if not report.files:
        done = "no small files to merge"
    old = count_text(report.details["files_swept"], "old file")
    tell(report, f"{lake}: {done}; {old} removed")


@spark.command("audit")
def audit(
    *,
    store_path: StorePath | None = None,
    lake: str | None = None,
    fleet: str | None = None,
    at: Where,
) -> None:
    """Read and check every file of an archive and of a lake.

    Checks checksums, order and counts of entries against the manifest and the log. Use
    `streamkeep fsck` for live entries.

    Examples:
      streamkeep spark audit orders.store
      streamkeep spark audit orders.store --lake orders.lake
      streamkeep spark audit --fleet s3://bucket/fleet --lake s3://bucket/lake

    Exit status: 0  nothing is wrong
                 4  something is damaged: it is listed

    Args:
        lake (LAKE): Check this lake, too, or alone.
        fleet (URI): Check the archives of this fleet, and its lake.
    """
    if store_path is None and lake is None and fleet is None:
        raise click.UsageError("name what to audit: STORE, --lake, --fleet, or several")
    report = run(at, "audit", check_both(store_path, lake), lake=lake, fleet=fleet)
    segments = count_text(report.details["segments"], "segment")
    files = count_text(report.details["lake_files"], "file of the lake", "files of the lake")
    size = f"{entries_text(report.entries)}, {size_text(report.size_bytes)}"
    tell(report, f"{segments} and {files}, {size}: {'damaged' if report.problems else 'clean'}")


@spark.command("restore")
def restore(
    source: str,
    store_path: StorePath,
    key: bytes,
    *,
    into: bytes | None = None,
    store_id: str | None = None,
    incarnation: Positive | None = None,
    start: From = b"-",
    end: To = b"+",
    staging: Staging | None = None,
    at: Where,
) -> None:
    """Write entries of a lake back into a stream of STORE.

    SOURCE is a lake, or a store with an archive. The entries keep their IDs, so the stream must not
    have higher ones. If it is killed, run it again: it continues, and no entry comes twice. After a
    complete run, it compares every entry and changes nothing.

    Examples:
      streamkeep spark restore orders.lake restored.store orders
      streamkeep spark restore orders.lake restored.store orders --as june --start 2024-06-01

    Args:
        into (--as KEY): Write to this stream instead.
        store_id (UUID): Of the store, if the lake has several.
        incarnation (N): Number of the stream, if it was deleted and made again.
        start: First ID, or a time.
        end: Last ID, or a time.
    """
    if not (Path(source) / "data.mdb").is_file():
        check_lake(source)
    options: dict[str, Any] = {"into": into, "store_id": store_id, "incarnation": incarnation}
    options |= {"start": start.decode(), "end": end.decode(), "staging": staging}
    report = run(at, "restore", source, str(store_path), key, **options)
    first, last = report.details["first_id"], report.details["last_id"]
    span = f", {first} to {last}" if first else ""
    already = report.details["already"]
    done = f"{entries_text(report.entries)} restored{span}"
    there = f"nothing to do: {entries_text(already)} already there{span}"
    tell(report, there if already else done)


@spark.command("erase")
def erase(
    key: bytes,
    *,
    ids: tuple[bytes, ...] = (),
    store_path: Annotated[Path, click.Path(path_type=Path)] | None = None,
    lake: str | None = None,
    store_id: str | None = None,
    where: str | None = None,
    yes: Yes = False,
    at: Where,
) -> None:
    """Erase entries from store, archive and lake, with proof.

    Afterwards the entries are in no file of either. Old versions of the lake that held them can no
    longer be read. Everything is read again to prove it.

    Example:
      streamkeep spark erase orders 1718004800000-0 --store orders.store --lake orders.lake --yes

    Exit status: 4  an entry is still there: it is listed

    Args:
        ids (ID...):
        store_path (--store): Erase from this store.
        lake (LAKE): Erase from this lake.
        store_id (UUID): Of the store whose entries are erased, if not --store.
        where (SQL): Erase the entries of the lake that meet this condition, too: "name = 'x'".
    """
    if store_path is None and lake is None:
        raise click.UsageError("name what to erase from: --store, --lake, or both")
    if not ids and where is None:
        raise click.UsageError("name what to erase: IDs, or a condition with --where")
    store = check_both(store_path, lake)
    parts = [entries_text(len(ids))] * bool(ids) + [f"those where {where}"] * bool(where)
    confirm_loss(
        [f"{' and '.join(parts)} of {quoting.named(key)} will be gone for good"], "Erase?", yes=yes
    )
    texts = [one.decode(errors="backslashreplace") for one in ids]
    report = run(at, "erase", key, texts, store=store, lake=lake, where=where, store_id=store_id)
    details, files = report.details, count_text(report.files, "file")
    there = f"{details['erased_in_lake']:,} in the lake, where {files} had to be written again"
    tell(report, f"{entries_text(details['erased_in_store'])} erased in the store, {there}")


@spark.command("report")
def report(
    store_path: StorePath,
    folder: str,
    *,
    chosen: Chosen,
    measures: tuple[str, ...] = (),
    by: tuple[str, ...] = (),
    tail_export: TailExport | None = None,
    at: Where,
) -> None:
    """Draw plots of streams on a page.

    Throughput, time between entries, sizes, the lag of groups and their delays, and fields of your
    choice. Plots are PNG files, and their numbers CSV files.

    Examples:
      streamkeep spark report orders.store --output report
      streamkeep spark report orders.store --output report --measure price --by sku

    Args:
        folder (--output DIR): Folder for the files; index.html is the one to open.
        measures (--measure FIELD): Show this numeric field by hour of the day; may be given again.
        by (FIELD): Show the measures by the values of this field, too; may be given again.
    """
    options = {"measures": measures, "by": by, "tail_export": tail_export, **chosen.options()}
    done = run(at, "report", check_store(store_path), folder, steps=False, **options)
    shown = f"{entries_text(done.entries)} of {count_text(done.details['streams'], 'stream')}"
    tell(done, f"{done.details['page']}: {shown}")


@spark.command("tail")
def tail(
    store_path: StorePath,
    *,
    target: Literal["console", "parquet", "delta", "store"] = "console",
    path: str | None = None,
    chosen: Chosen,
    from_start: bool = False,
    once: bool = False,
    every: Ms = 0,
    max_entries: Positive = 1_000_000,
    checkpoint: str | None = None,
    fail_on_data_loss: FailOnDataLoss = True,
    tail_export: TailExport | None = None,
    staging: Staging | None = None,
    at: Where,
) -> None:
    """Follow streams with a streaming query, to files or a store.

    Continues until interrupted. Started again with the same target, it continues where it was, and
    no entry comes twice into a Delta table or a store.

    Examples:
      streamkeep spark tail orders.store --from-start --once
      streamkeep spark tail orders.store --to delta --path orders.delta --from-start --once
      streamkeep spark tail orders.store --to store --path copy.store --from-start --once

    Args:
        target (--to): The target: this terminal, Parquet files, a Delta table, or another store.
        path (PATH): Of the files, the table or the store.
        from_start: Begin with the oldest entry, archived or not.
        once: End when all present entries have been written.
        every: Wait this long from one batch to the next; 0 for as soon as possible.
        max_entries (N): Take N entries at a time.
        checkpoint (DIR): Folder of its checkpoint; by default PATH.checkpoint.
    """
    options = chosen.options()
    if (path is None) != (target == "console"):
        raise click.UsageError(f"--to {target} takes {'no' if path else 'a'} --path")
    options |= {"from_start": from_start, "available_now": once, "every_s": every / 1000}
    options |= {"max_entries": max_entries, "checkpoint": checkpoint, "staging": staging}
    options |= {"fail_on_data_loss": fail_on_data_loss, "tail_export": tail_export}
    report = run(at, "tail", check_store(store_path), target, path, steps=False, **options)
    tell(report, f"{entries_text(report.entries)} followed")
