"""Jobs on Spark about lakes: spark to-lake, compact, audit, restore, erase."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Final

import click

from streamkeep.format import quoting
from streamkeep.format.humanize import count_text, entries_text, size_text
from streamkeep.tools.base import output, spark_job
from streamkeep.tools.base.arguments import (
    Bytes,
    Duration,
    Id,
    Number,
    key_argument,
    optional_store,
    refuse_options,
    store_argument,
    yes_option,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import confirm_loss
from streamkeep.tools.base.spark_job import (
    data_loss_option,
    job_options,
    lake_argument,
    staging_option,
    stream_options,
    tail_export_option,
)

_MIB: Final = 1 << 20


@command("to-lake")
@click.argument("places", metavar="[STORE] LAKE", nargs=-1, required=True)
@click.option(
    "--fleet",
    metavar="URI",
    help="Copy all stores whose archives are below this URI, or that are in this folder.",
)
@stream_options
@click.option(
    "--columns",
    metavar="DDL",
    help="Fields that get columns of their own: 'sku int, price double'.",
)
@data_loss_option
@tail_export_option
@click.option("--follow", is_flag=True, help="Continue until interrupted, round after round.")
@click.option(
    "--every",
    type=Duration(),
    default="1m",
    show_default=True,
    help="Begin a round this often, with --follow.",
)
@job_options
def to_lake(
    places: tuple[str, ...],
    fleet: str | None,
    streams: tuple[bytes, ...],
    pattern: str | None,
    columns: str | None,
    fail_on_data_loss: bool,
    tail_export: str | None,
    follow: bool,
    every: int,
) -> None:
    """Copy new entries into a lake, archived and live ones.

    Each run continues where the last one ended, and all of its entries become visible at once. If
    it is killed, run it again: no entry is left out, and none comes twice. A store or stream that
    cannot be copied is listed, and all others are copied.

    \b
    Examples:
      streamkeep spark to-lake orders.store orders.lake
      streamkeep spark to-lake orders.store orders.lake --columns 'sku int, note string'
      streamkeep spark to-lake orders.store orders.lake --follow --every 5m
      streamkeep spark to-lake --fleet s3://bucket/fleet s3://bucket/lake

    \b
    Exit status: 0  all streams were copied
                 4  some were not: they are listed
    """
    *stores, lake = places
    if len(stores) != (0 if fleet else 1):
        expected = "LAKE alone: --fleet names the stores" if fleet else "STORE and LAKE"
        raise click.UsageError(f"{len(places)} arguments, expected {expected}")
    if fleet is not None:
        refuse_options("cannot be used with --fleet", "tail_export")
    spark_job.check_streams(streams, pattern)
    if not follow:
        refuse_options("needs --follow", "every")
    for store in stores:
        spark_job.check_store(Path(store))
    spark_job.check_place(lake)
    with spark_job.running() as session:
        from streamkeep.pipeline.jobs import to_lake as jobs

        copy = jobs.fleet_to_lake if fleet else partial(jobs.to_lake, tail_export=tail_export)
        promoted = None if columns is None else jobs.promoted_columns(session, columns)
        found: list[str] = []
        while True:
            began = time.monotonic()
            with output.steps("to-lake") as advance:
                report = copy(
                    session,
                    fleet or stores[0],
                    lake,
                    streams=spark_job.texts(streams),
                    pattern=pattern,
                    columns=promoted,
                    fail_on_data_loss=fail_on_data_loss,
                    progress=advance,
                )
            if follow:  # one bad stream must not end it
                known, found = found, report.problems
                for problem in found:
                    if problem not in known:
                        output.note(problem)
                report.problems = []
            absent = report.details["absent"]
            gone = f"; {entries_text(absent)} gone before they could be copied"
            if not follow or report.entries:
                spark_job.tell(
                    report,
                    f"{lake}: {entries_text(report.entries)} more, in "
                    f"{count_text(report.files, 'file')} "
                    f"of {size_text(report.size_bytes)}{gone if absent else ''}",
                )
            if not follow:
                return
            time.sleep(max(0.0, began + every / 1000 - time.monotonic()))


@command("compact")
@lake_argument
@click.option(
    "--target",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    metavar="MIB",
    help="Files of this size are not merged.",
)
@click.option(
    "--keep",
    type=Duration(),
    default="7d",
    show_default=True,
    help="Keep replaced files so long, in whole hours, for readers of older versions and for "
    "running jobs.",
)
@click.option(
    "--fill",
    is_flag=True,
    help="Write all files again that lack columns which `to-lake --columns` added later.",
)
@job_options
def compact(lake: str, target: int, keep: int, fill: bool) -> None:
    """Merge small files of a lake, and remove old ones.

    The entries stay the same. Readers see either all old files or all new ones.

    \b
    Example:
      streamkeep spark compact orders.lake
    """
    hours, rest = divmod(keep, 3_600_000)
    if rest:
        raise click.BadParameter("whole hours, such as 12h or 7d", param_hint="--keep")
    spark_job.check_lake(lake)
    with spark_job.running() as session, output.steps("compact") as advance:
        from streamkeep.pipeline.jobs.compact import compact as job

        report = job(
            session,
            lake,
            target_bytes=target * _MIB,
            retention_hours=hours,
            fill=fill,
            progress=advance,
        )
    replaced = count_text(report.details["files_replaced"], "file")
    before = size_text(report.details["bytes_replaced"])
    done = f"{replaced} of {before} became {report.files:,} of {size_text(report.size_bytes)}"
    if not report.files:
        done = "no small files to merge"
    old = count_text(report.details["files_swept"], "old file")
    spark_job.tell(report, f"{lake}: {done}; {old} removed")


@command("audit")
@optional_store
@click.option("--lake", metavar="LAKE", help="Check this lake, too, or alone.")
@click.option("--fleet", metavar="URI", help="Check the archives of this fleet, and its lake.")
@job_options
def audit(
    store_path: Path | None,
    lake: str | None,
    fleet: str | None,
) -> None:
    """Read and check every file of an archive and of a lake.

    Checks checksums, order and counts of entries against the manifest and the log. Use
    `streamkeep fsck` for live entries.

    \b
    Examples:
      streamkeep spark audit orders.store
      streamkeep spark audit orders.store --lake orders.lake
      streamkeep spark audit --fleet s3://bucket/fleet --lake s3://bucket/lake

    \b
    Exit status: 0  nothing is wrong
                 4  something is damaged: it is listed
    """
    if store_path is None and lake is None and fleet is None:
        raise click.UsageError("name what to audit: STORE, --lake, --fleet, or several")
    if store_path is not None:
        spark_job.check_store(store_path)
    if lake is not None:
        spark_job.check_lake(lake)
    with spark_job.running() as session, output.steps("audit") as advance:
        from streamkeep.pipeline.jobs.audit import audit as job

        report = job(
            session,
            None if store_path is None else str(store_path),
            lake=lake,
            fleet=fleet,
            progress=advance,
        )
    segments = count_text(report.details["segments"], "segment")
    files = count_text(report.details["lake_files"], "file of the lake", "files of the lake")
    spark_job.tell(
        report,
        f"{segments} and {files}, {entries_text(report.entries)}, "
        f"{size_text(report.size_bytes)}: {'damaged' if report.problems else 'clean'}",
    )


@command("restore")
@click.argument("source", metavar="SOURCE")
@store_argument
@key_argument
@click.option("--as", "into", type=Bytes(), metavar="KEY", help="Write to this stream instead.")
@click.option("--store-id", metavar="UUID", help="Of the store, if the lake has several.")
@click.option(
    "--incarnation",
    type=Number(min=1),
    help="Number of the stream, if it was deleted and made again.",
)
@click.option(
    "--start", type=Id("from"), default="-", show_default=True, help="First ID, or a time."
)
@click.option("--end", type=Id("to"), default="+", show_default=True, help="Last ID, or a time.")
@staging_option
@job_options
def restore(
    source: str,
    store_path: Path,
    key: bytes,
    into: bytes | None,
    store_id: str | None,
    incarnation: int | None,
    start: bytes,
    end: bytes,
    staging: str | None,
) -> None:
    """Write entries of a lake back into a stream of STORE.

    SOURCE is a lake, or a store with an archive. The entries keep their IDs, so the stream must not
    have higher ones. If it is killed, run it again: it continues, and no entry comes twice. After a
    complete run, it compares every entry and changes nothing.

    \b
    Examples:
      streamkeep spark restore orders.lake restored.store orders
      streamkeep spark restore orders.lake restored.store orders --as june --start 2024-06-01
    """
    if not (Path(source) / "data.mdb").is_file():
        spark_job.check_lake(source)
    with spark_job.running() as session, output.steps("restore") as advance:
        from streamkeep.pipeline.jobs.restore import restore as job

        report = job(
            session,
            source,
            str(store_path),
            key,
            into=into,
            store_id=store_id,
            incarnation=incarnation,
            start=start.decode(),
            end=end.decode(),
            staging=staging,
            progress=advance,
        )
    first, last = report.details["first_id"], report.details["last_id"]
    span = f", {first} to {last}" if first else ""
    already = report.details["already"]
    done = f"{entries_text(report.entries)} restored{span}"
    there = f"nothing to do: {entries_text(already)} already there{span}"
    spark_job.tell(report, there if already else done)


@command("erase")
@key_argument
@click.argument("ids", metavar="ID...", nargs=-1, type=Bytes())
@click.option(
    "--store", "store_path", type=click.Path(path_type=Path), help="Erase from this store."
)
@click.option("--lake", metavar="LAKE", help="Erase from this lake.")
@click.option(
    "--store-id", metavar="UUID", help="Of the store whose entries are erased, if not --store."
)
@click.option(
    "--where",
    metavar="SQL",
    help="Erase the entries of the lake that meet this condition, too: \"name = 'x'\".",
)
@yes_option
@job_options
def erase(
    key: bytes,
    ids: tuple[bytes, ...],
    store_path: Path | None,
    lake: str | None,
    store_id: str | None,
    where: str | None,
    yes: bool,
) -> None:
    """Erase entries from store, archive and lake, with proof.

    Afterwards the entries are in no file of either. Old versions of the lake that held them can no
    longer be read. Everything is read again to prove it.

    \b
    Example:
      streamkeep spark erase orders 1718004800000-0 --store orders.store --lake orders.lake --yes

    \b
    Exit status: 4  an entry is still there: it is listed
    """
    if store_path is None and lake is None:
        raise click.UsageError("name what to erase from: --store, --lake, or both")
    if not ids and where is None:
        raise click.UsageError("name what to erase: IDs, or a condition with --where")
    if store_path is not None:
        spark_job.check_store(store_path)
    if lake is not None:
        spark_job.check_lake(lake)
    what = f"{entries_text(len(ids))} of {quoting.named(key)}" if ids else "entries"
    confirm_loss(
        [f"{what}{f' and those where {where}' if where else ''} will be gone for good"],
        "Erase?",
        yes=yes,
    )
    with spark_job.running() as session, output.steps("erase") as advance:
        from streamkeep.pipeline.jobs.erase import erase as job

        report = job(
            session,
            key,
            [one.decode(errors="backslashreplace") for one in ids],
            store=None if store_path is None else str(store_path),
            lake=lake,
            store_id=store_id,
            where=where,
            progress=advance,
        )
    details = report.details
    spark_job.tell(
        report,
        f"{entries_text(details['erased_in_store'])} erased in the store, "
        f"{details['erased_in_lake']:,} in the lake, where "
        f"{count_text(report.files, 'file')} had to be written again",
    )
