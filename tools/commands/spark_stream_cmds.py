"""Jobs on Spark about streams as they are: spark report, tail."""

from __future__ import annotations

from pathlib import Path

import click

from streamkeep.format.humanize import count_text, entries_text
from streamkeep.tools.base import spark_job
from streamkeep.tools.base.arguments import Duration, Number, store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.spark_job import (
    data_loss_option,
    job_options,
    staging_option,
    stream_options,
    tail_export_option,
)


@command("report")
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
    streams: tuple[bytes, ...],
    pattern: str | None,
    measures: tuple[str, ...],
    by: tuple[str, ...],
    tail_export: str | None,
) -> None:
    """Draw plots of streams on a page.

    Throughput, time between entries, sizes, the lag of groups and their delays, and fields of your
    choice. Plots are PNG files, and their numbers CSV files.

    \b
    Examples:
      streamkeep spark report orders.store --output report
      streamkeep spark report orders.store --output report --measure price --by sku
    """
    spark_job.check_streams(streams, pattern)
    spark_job.check_store(store_path)
    with spark_job.running() as session:
        from streamkeep.pipeline.jobs.report import report as job

        done = job(
            session,
            str(store_path),
            folder,
            streams=spark_job.texts(streams),
            pattern=pattern,
            measures=measures,
            by=by,
            tail_export=tail_export,
        )
    spark_job.tell(
        done,
        f"{done.details['page']}: {entries_text(done.entries)} of "
        f"{count_text(done.details['streams'], 'stream')}",
    )


@command("tail")
@store_argument
@click.option(
    "--to",
    "target",
    type=click.Choice(["console", "parquet", "delta", "store"]),
    default="console",
    show_default=True,
    help="The target: this terminal, Parquet files, a Delta table, or another store.",
)
@click.option("--path", metavar="PATH", help="Of the files, the table or the store.")
@stream_options
@click.option("--from-start", is_flag=True, help="Begin with the oldest entry, archived or not.")
@click.option("--once", is_flag=True, help="End when all present entries have been written.")
@click.option(
    "--every",
    type=Duration(),
    default="0",
    show_default=True,
    help="Wait this long from one batch to the next; 0 for as soon as possible.",
)
@click.option(
    "--max-entries",
    type=Number(min=1),
    default=1_000_000,
    show_default=True,
    help="Take N entries at a time.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Folder of its checkpoint; by default PATH.checkpoint.",
)
@data_loss_option
@tail_export_option
@staging_option
@job_options
def tail(
    store_path: Path,
    target: str,
    path: str | None,
    streams: tuple[bytes, ...],
    pattern: str | None,
    from_start: bool,
    once: bool,
    every: int,
    max_entries: int,
    checkpoint: str | None,
    fail_on_data_loss: bool,
    tail_export: str | None,
    staging: str | None,
) -> None:
    """Follow streams with a streaming query, to files or a store.

    Continues until interrupted. Started again with the same target, it continues where it was, and
    no entry comes twice into a Delta table or a store.

    \b
    Examples:
      streamkeep spark tail orders.store --from-start --once
      streamkeep spark tail orders.store --to delta --path orders.delta --from-start --once
      streamkeep spark tail orders.store --to store --path copy.store --from-start --once
    """
    spark_job.check_streams(streams, pattern)
    if (path is None) != (target == "console"):
        raise click.UsageError(f"--to {target} takes {'no' if path else 'a'} --path")
    spark_job.check_store(store_path)
    with spark_job.running() as session:
        from streamkeep.pipeline.jobs.tail import tail as job

        report = job(
            session,
            str(store_path),
            target,
            path,
            streams=spark_job.texts(streams),
            pattern=pattern,
            checkpoint=checkpoint,
            from_start=from_start,
            available_now=once,
            every_s=every / 1000,
            max_entries=max_entries,
            fail_on_data_loss=fail_on_data_loss,
            tail_export=tail_export,
            staging=staging,
        )
    spark_job.tell(report, f"{entries_text(report.entries)} followed")
