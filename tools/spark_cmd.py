"""spark: the jobs of the data pipeline, on Spark.

Nothing of Spark is loaded before a job runs: the other commands must not wait for it, and work
where it is not installed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from streamkeep.tools import output
from streamkeep.tools.command import (
    Bytes,
    Exit,
    Failure,
    Id,
    StoreCommand,
    confirm_loss,
    json_option,
    key_argument,
    optional_store,
    progress_option,
    quoted_option,
    store_argument,
    yes_option,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamkeep.pipeline.job import Progress, Report

Function = TypeVar("Function", bound=Callable[..., Any])

_MIB: Final = 1 << 20
_URI: Final = re.compile(r"[a-z][a-z0-9]+:/")
_SHIP_CODE: Final = "streamkeep.spark.ship_code"


def _note_shipping(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Keep --ship-code for `_running`: no job has to know of it."""
    ctx.meta[_SHIP_CODE] = value


def job_options(function: Function) -> Function:
    """Add what all jobs take: where Spark runs, its settings, --json and --progress."""
    for add in (
        progress_option,
        json_option,
        click.option(
            "--conf",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting of Spark; may be given again.",
        ),
        click.option(
            "--ship-code",
            is_flag=True,
            expose_value=False,
            callback=_note_shipping,
            help="Send this package to executors that do not have it.",
        ),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            help="Where Spark runs: all cores of this machine, or spark://host:port and so on.",
        ),
    ):
        function = add(function)
    return function


def stream_options(function: Function) -> Function:
    """Add --stream and --pattern."""
    for add in (
        click.option(
            "--pattern", metavar="REGEX", help="Take the streams whose whole key this matches."
        ),
        click.option(
            "--stream",
            "streams",
            multiple=True,
            metavar="KEY",
            help="Take this stream; may be given again. All without it.",
        ),
    ):
        function = add(function)
    return function


def tail_export_option(function: Function) -> Function:
    """Add --tail-export."""
    return click.option(
        "--tail-export",
        metavar="FOLDER",
        help="For executors on other hosts: write what is in no segment there, until it is done.",
    )(function)


def staging_option(function: Function) -> Function:
    """Add --staging."""
    return click.option(
        "--staging",
        metavar="FOLDER",
        help="For executors on other hosts: leave what they made for the driver there.",
    )(function)


def lake_argument(function: Function) -> Function:
    """Add the argument LAKE."""
    return click.argument("lake", metavar="LAKE")(function)


@click.group()
def spark() -> None:
    """Run jobs on Spark: build a lake, compact, audit, erase, report.

    Needs the extra: pip install 'streamkeep[spark]'. It brings Spark, and a Java where there is
    none. A LAKE is a Delta table of Parquet files, one row per entry: a path, or a URI such as
    s3://bucket/lake, with AWS_ACCESS_KEY_ID and so on in the environment. The store stays on a
    disk of the host on which the command runs.

    On a cluster: --master says where it is, --ship-code or --conf spark.archives=... takes the code
    there, and --tail-export names a folder that all hosts reach, for what is live.

    \b
    Example, from a store to a lake and a report:
      streamkeep spark to-lake orders.store orders.lake
      streamkeep spark audit orders.store --lake orders.lake
      streamkeep spark report orders.store --output report
    """


@spark.command("to-lake", cls=StoreCommand)
@store_argument
@lake_argument
@stream_options
@click.option(
    "--columns",
    metavar="DDL",
    help="Fields that get columns of their own, when the lake is made: 'sku int, price double'.",
)
@tail_export_option
@click.option("--follow", is_flag=True, help="Go on until interrupted, round after round.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Begin a round this often, with --follow.",
)
@job_options
@quoted_option
def to_lake(
    store_path: Path,
    lake: str,
    streams: tuple[str, ...],
    pattern: str | None,
    columns: str | None,
    tail_export: str | None,
    follow: bool,
    every: float,
    master: str,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool | None,
) -> None:
    """Take new entries over into a lake, archived and live ones.

    Each run goes on where the last one ended, and all of it becomes visible at once. Killed at any
    moment, run it again: no entry is left out, none comes twice.

    \b
    Examples:
      streamkeep spark to-lake orders.store orders.lake
      streamkeep spark to-lake orders.store orders.lake --columns 'sku int, note string'
      streamkeep spark to-lake orders.store orders.lake --follow --every 300
    """
    _check_streams(streams, pattern)
    _check_store(store_path)
    _check_place(lake)
    with _running(master, settings) as session:
        from streamkeep.pipeline.jobs.to_lake import promoted_columns
        from streamkeep.pipeline.jobs.to_lake import to_lake as job

        promoted = None if columns is None else promoted_columns(session, columns)
        while True:
            began = time.monotonic()
            with _progress(progress, "to-lake") as advance:
                report = job(
                    session,
                    str(store_path),
                    lake,
                    streams=streams or None,
                    pattern=pattern,
                    columns=promoted,
                    tail_export=tail_export,
                    progress=advance,
                )
            if not follow or report.entries:
                _tell(
                    report,
                    f"{lake}: {output.entries_text(report.entries)} more, in "
                    f"{output.count_text(report.files, 'file')} "
                    f"of {output.size_text(report.size_bytes)}",
                    as_json,
                )
            if not follow:
                return
            time.sleep(max(0.0, began + every - time.monotonic()))


@spark.command("compact", cls=StoreCommand)
@lake_argument
@click.option(
    "--target",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    metavar="MIB",
    help="Size of a file that is big enough.",
)
@click.option(
    "--keep-hours",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    metavar="N",
    help="Keep replaced files that long, for readers of older versions and for running jobs.",
)
@job_options
def compact(
    lake: str,
    target: int,
    keep_hours: int,
    master: str,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool | None,
) -> None:
    """Put small files of a lake together; sweep out old ones.

    The entries stay the same, and readers see either all old files or all new ones.

    \b
    Example:
      streamkeep spark compact orders.lake
    """
    _check_lake(lake)
    with _running(master, settings) as session, _progress(progress, "compact") as advance:
        from streamkeep.pipeline.jobs.compact import compact as job

        report = job(
            session,
            lake,
            target_bytes=target * _MIB,
            retention_hours=keep_hours,
            progress=advance,
        )
    replaced = output.count_text(report.details["files_replaced"], "file")
    before = output.size_text(report.details["bytes_replaced"])
    done = (
        f"{replaced} of {before} became {report.files:,} of {output.size_text(report.size_bytes)}"
    )
    if not report.files:
        done = "no small files to put together"
    old = output.count_text(report.details["files_swept"], "old file")
    _tell(report, f"{lake}: {done}; {old} removed", as_json)


@spark.command("audit", cls=StoreCommand)
@optional_store
@click.option("--lake", metavar="LAKE", help="Check this lake, too, or alone.")
@job_options
def audit(
    store_path: Path | None,
    lake: str | None,
    master: str,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool | None,
) -> None:
    """Read and check every file of an archive and of a lake.

    Checksums, order and counts of entries, and all of it against manifest and log. What is live is
    for `streamkeep fsck`.

    \b
    Examples:
      streamkeep spark audit orders.store
      streamkeep spark audit orders.store --lake orders.lake

    \b
    Exit status: 0  nothing is wrong
                 4  something is: see what is said
    """
    if store_path is None and lake is None:
        raise click.UsageError("name what to audit: STORE, --lake, or both")
    if store_path is not None:
        _check_store(store_path)
    if lake is not None:
        _check_lake(lake)
    with _running(master, settings) as session, _progress(progress, "audit") as advance:
        from streamkeep.pipeline.jobs.audit import audit as job

        report = job(
            session,
            None if store_path is None else str(store_path),
            lake=lake,
            progress=advance,
        )
    segments = output.count_text(report.details["segments"], "segment")
    files = output.count_text(report.details["lake_files"], "file of the lake", "files of the lake")
    _tell(
        report,
        f"{segments} and {files}, {output.entries_text(report.entries)}, "
        f"{output.size_text(report.size_bytes)}: {'damaged' if report.problems else 'clean'}",
        as_json,
    )


@spark.command("report", cls=StoreCommand)
@store_argument
@click.option(
    "--output",
    "folder",
    required=True,
    metavar="DIR",
    help="Folder for the files; index.html is the one to open.",
)
@stream_options
@click.option(
    "--measure",
    "measures",
    multiple=True,
    metavar="FIELD",
    help="Show this numeric field by hour of the day; may be given again.",
)
@click.option(
    "--by",
    multiple=True,
    metavar="FIELD",
    help="Show the measures by the values of this field, too; may be given again.",
)
@tail_export_option
@job_options
def report(
    store_path: Path,
    folder: str,
    streams: tuple[str, ...],
    pattern: str | None,
    measures: tuple[str, ...],
    by: tuple[str, ...],
    tail_export: str | None,
    master: str,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool | None,
) -> None:
    """Draw what goes through streams: a page with plots.

    Throughput, time between entries, sizes, what groups have before them and how late they are,
    and fields of your choice. Plots are PNG files, and the numbers behind them CSV files.

    \b
    Examples:
      streamkeep spark report orders.store --output report
      streamkeep spark report orders.store --output report --measure price --by sku
    """
    _check_streams(streams, pattern)
    _check_store(store_path)
    with _running(master, settings) as session, _progress(progress, "report") as advance:
        from streamkeep.pipeline.jobs.report import report as job

        done = job(
            session,
            str(store_path),
            folder,
            streams=streams or None,
            pattern=pattern,
            measures=measures,
            by=by,
            tail_export=tail_export,
            progress=advance,
        )
    _tell(
        done,
        f"{done.details['page']}: {output.entries_text(done.entries)} of "
        f"{output.count_text(done.details['streams'], 'stream')}",
        as_json,
    )


@spark.command("restore", cls=StoreCommand)
@click.argument("source", metavar="SOURCE")
@store_argument
@key_argument
@click.option("--as", "into", type=Bytes(), metavar="KEY", help="Write to this stream instead.")
@click.option(
    "--start", type=Id("from"), default="-", show_default=True, help="First ID, or a time."
)
@click.option("--end", type=Id("to"), default="+", show_default=True, help="Last ID, or a time.")
@staging_option
@job_options
@quoted_option
def restore(
    source: str,
    store_path: Path,
    key: bytes,
    into: bytes | None,
    start: bytes,
    end: bytes,
    staging: str | None,
    master: str,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool | None,
) -> None:
    """Write entries of a lake back into a stream of STORE.

    SOURCE is a lake, or a store with an archive. The entries keep their IDs, so the stream must not
    have higher ones. Killed at any moment, run it again: it goes on, and no entry comes twice. Run
    again when it was complete, it compares every entry, and changes nothing.

    \b
    Examples:
      streamkeep spark restore orders.lake restored.store orders
      streamkeep spark restore orders.lake restored.store orders --as june --start 2024-06-01
    """
    if not (Path(source) / "data.mdb").is_file():
        _check_lake(source)
    with _running(master, settings) as session, _progress(progress, "restore") as advance:
        from streamkeep.pipeline.jobs.restore import restore as job

        report = job(
            session,
            source,
            str(store_path),
            key.decode(),
            into=None if into is None else into.decode(),
            start=start.decode(),
            end=end.decode(),
            staging=staging,
            progress=advance,
        )
    first, last = report.details["first_id"], report.details["last_id"]
    span = f", {first} to {last}" if first else ""
    already = report.details["already"]
    done = f"{output.entries_text(report.entries)} restored{span}"
    there = f"nothing to do: {output.entries_text(already)} already there{span}"
    _tell(report, there if already else done, as_json)


@spark.command("tail", cls=StoreCommand)
@store_argument
@click.option(
    "--to",
    "target",
    type=click.Choice(["console", "parquet", "delta", "store"]),
    default="console",
    show_default=True,
    help="Where to: this terminal, Parquet files, a Delta table, or another store.",
)
@click.option("--path", metavar="PATH", help="Of the files, the table or the store.")
@stream_options
@click.option("--from-start", is_flag=True, help="Begin with the oldest entry, archived or not.")
@click.option("--once", is_flag=True, help="End when all that is there now has been written.")
@click.option(
    "--every",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long from one batch to the next; 0 for as soon as possible.",
)
@click.option(
    "--max-entries", type=click.IntRange(min=1), metavar="N", help="Take N entries at a time."
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Folder that says how far it came; by default PATH.checkpoint.",
)
@tail_export_option
@staging_option
@job_options
@quoted_option
def tail(
    store_path: Path,
    target: str,
    path: str | None,
    streams: tuple[str, ...],
    pattern: str | None,
    from_start: bool,
    once: bool,
    every: float,
    max_entries: int | None,
    checkpoint: str | None,
    tail_export: str | None,
    staging: str | None,
    master: str,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool | None,
) -> None:
    """Follow streams with a streaming query, to files or a store.

    Goes on until interrupted. Started again with the same target, it goes on where it was, and no
    entry comes twice into a Delta table or a store.

    \b
    Examples:
      streamkeep spark tail orders.store --from-start --once
      streamkeep spark tail orders.store --to delta --path orders.delta --from-start --once
      streamkeep spark tail orders.store --to store --path copy.store --from-start --once
    """
    _check_streams(streams, pattern)
    if (path is None) != (target == "console"):
        raise click.UsageError(f"--to {target} takes {'no' if path else 'a'} --path")
    _check_store(store_path)
    with _running(master, settings) as session:
        from streamkeep.pipeline.jobs.tail import tail as job

        report = job(
            session,
            str(store_path),
            target,
            path,
            streams=streams or None,
            pattern=pattern,
            checkpoint=checkpoint,
            from_start=from_start,
            available_now=once,
            every_s=every,
            max_entries=max_entries,
            tail_export=tail_export,
            staging=staging,
        )
    _tell(report, f"{output.entries_text(report.entries)} followed", as_json)


@spark.command("erase", cls=StoreCommand)
@key_argument
@click.argument("ids", metavar="ID...", nargs=-1, type=Bytes())
@click.option(
    "--store", "store_path", type=click.Path(path_type=Path), help="Erase from this store."
)
@click.option("--lake", metavar="LAKE", help="Erase from this lake.")
@click.option(
    "--where",
    metavar="SQL",
    help="Erase the entries of the lake that meet this condition, too: \"name = 'x'\".",
)
@yes_option
@job_options
@quoted_option
def erase(
    key: bytes,
    ids: tuple[bytes, ...],
    store_path: Path | None,
    lake: str | None,
    where: str | None,
    yes: bool,
    master: str,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool | None,
) -> None:
    """Erase entries from store, archive and lake, with proof.

    Afterwards the entries are in no file of either, old versions of the lake included, which
    cannot be read any more as far as they held them. All of it is read again to prove that.

    \b
    Example:
      streamkeep spark erase orders 1718004800000-0 --store orders.store --lake orders.lake --yes

    \b
    Exit status: 4  an entry is still there: see what is said
    """
    if store_path is None and lake is None:
        raise click.UsageError("name what to erase from: --store, --lake, or both")
    if not ids and where is None:
        raise click.UsageError("name what to erase: IDs, or a condition with --where")
    if store_path is not None:
        _check_store(store_path)
    if lake is not None:
        _check_lake(lake)
    what = f"{output.entries_text(len(ids))} of {output.named(key)}" if ids else "entries"
    confirm_loss(
        [f"{what}{f' and those where {where}' if where else ''} will be gone for ever"],
        "Erase?",
        yes=yes,
    )
    with _running(master, settings) as session, _progress(progress, "erase") as advance:
        from streamkeep.pipeline.jobs.erase import erase as job

        report = job(
            session,
            key.decode(),
            [one.decode() for one in ids],
            store=None if store_path is None else str(store_path),
            lake=lake,
            where=where,
            progress=advance,
        )
    details = report.details
    _tell(
        report,
        f"{output.entries_text(details['erased_in_store'])} erased in the store, "
        f"{details['erased_in_lake']:,} in the lake, where "
        f"{output.count_text(report.files, 'file')} had to be written again",
        as_json,
    )


# --- what all jobs share ------------------------------------------------------------------------


@contextmanager
def _running(master: str, settings: tuple[str, ...]) -> Iterator[SparkSession]:
    """Start Spark for a job, and stop it."""
    from streamkeep.pipeline.launch import QUIET_JVM, missing, session

    conf: dict[str, object] = {"spark.driver.extraJavaOptions": QUIET_JVM}
    for setting in settings:
        name, found, value = setting.partition("=")
        if not found or not name:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="--conf")
        conf[name] = value

    running = session(
        master,
        fast_start=master.startswith("local"),
        ship_code=click.get_current_context().meta[_SHIP_CODE],
        **conf,
    )
    try:
        yield running
    except ModuleNotFoundError as error:
        raise missing(error) from error
    finally:
        running.stop()


@contextmanager
def _progress(wanted: bool | None, label: str) -> Iterator[Progress]:
    """Show how many parts of the work are done."""
    with output.steps(wanted, label) as advance:
        yield advance


def _check_store(path: Path) -> None:
    """Say what is wrong with a store before Spark is started, which takes seconds."""
    from streamkeep.engine.api import Store

    if _URI.match(str(path)) and not path.exists():  # one slash of it is gone by now
        raise Failure(
            f"{path}: a store stands on a disk of this host, where the command runs; what may be a "
            "URI is a lake, --tail-export and --staging"
        )
    Store(path, readonly=True, create=False).close()


def _check_place(place: str) -> None:
    """Say whether a bucket is out of reach; where the extra is missing, `_running` says that."""
    try:
        from streamkeep.pipeline.places import check, plain
    except ImportError:
        return
    check(plain(place))


def _check_lake(lake: str) -> None:
    """Say the same of a lake; where the extra is missing, `_running` says that."""
    try:
        from streamkeep.pipeline.lake import Lake
    except ImportError:
        return
    Lake.open(lake)


def _check_streams(streams: tuple[str, ...], pattern: str | None) -> None:
    if streams and pattern is not None:
        raise click.UsageError("give --stream or --pattern, not both")


def _tell(report: Report, summary: str, as_json: bool) -> None:
    """Print what a job did; end with a status that says whether something is wrong."""
    if as_json:
        for problem in report.problems:
            output.json_line("problem", problem=problem)
        facts = report.as_json()
        facts.pop("type")
        output.json_summary(f"spark {facts.pop('job')}", **facts)
    else:
        for problem in report.problems:
            output.line(problem)
        output.note(f"{summary}, in {output.span_text(report.seconds)}")
    if report.problems:
        raise click.exceptions.Exit(Exit.DAMAGED)
