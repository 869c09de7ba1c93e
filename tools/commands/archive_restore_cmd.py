"""`streamkeep archive restore`: archived entries back into a stream."""

from __future__ import annotations

import shlex
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkeep.format import quoting
from streamkeep.format.core.errors import IdTooSmallError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import entries_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.archive_options import number_option, range_options
from streamkeep.tools.base.arguments import Bytes, path_of, store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.statuses import Failure

if TYPE_CHECKING:
    pass


@command("restore")
@store_argument
@click.argument("key", metavar="NEWKEY", type=Bytes())
@click.option(
    "--source",
    type=Bytes(),
    metavar="KEY",
    help="The stream whose archive is restored; by default NEWKEY.",
)
@number_option
@click.option(
    "--into",
    type=click.Path(),
    callback=path_of,
    metavar="STORE",
    help="Restore into this store, which is created if it is missing.",
)
@range_options
def restore(
    store_path: Path,
    key: bytes,
    source: bytes | None,
    stream_number: int | None,
    into: Path | None,
    start: bytes,
    end: bytes,
) -> None:
    """Write archived entries into a stream, with the IDs they had.

    NEWKEY is created if it is missing. It must not have IDs above the first restored one. The
    archive of a stream is older than its live entries, so restore it into another stream or
    another store. Erased entries do not come back. A restore that was interrupted continues when
    the same command runs again; each entry comes once.

    \b
    Examples:
      streamkeep archive restore orders.store june --source orders --end 2024-07-01
      streamkeep archive restore orders.store orders --into copy.store
    """
    if source is not None and stream_number is not None:
        raise click.UsageError("--source and --stream-number cannot be used together")
    if into is not None and into.resolve() == store_path.resolve():
        into = None
    began = time.perf_counter()
    wanted: dict[str, Any] = {"stream_number": stream_number, "start": start, "end": end}
    with ExitStack() as stack:
        origin = None
        if into is not None:
            origin = stack.enter_context(open_store(store_path, readonly=True))
            name = None if stream_number is not None else source or key
            origin.archived_segments(name, **wanted)  # what is wrong here must not create INTO
        target = stack.enter_context(open_store(into or store_path, create=into is not None))
        advance = stack.enter_context(output.progress("restoring", None, sized=False))
        try:
            report = target.restore_archive(
                key,
                source,
                from_store=origin,
                progress=lambda done, _: advance(done, done),
                **wanted,
            )
        except IdTooSmallError as error:
            there = shlex.quote(str(into or store_path))
            hint = f"streamkeep info {there} {output.shell_key(key)}"
            raise Failure(error.redis_error, hint=hint) from error
    seconds = time.perf_counter() - began
    if common.as_json():
        output.summary(
            key=json_bytes(key),
            entries=report.entries,
            first_id=None if report.first_id is None else str(report.first_id),
            last_id=None if report.last_id is None else str(report.last_id),
            resumed=report.resumed,
            already=report.already,
            seconds=round(seconds, 3),
        )
        return
    span = f", {report.first_id} to {report.last_id}" if report.first_id else ""
    if report.already:
        output.note(
            f"nothing to do: {quoting.named(key)} has the {entries_text(report.already)} "
            f"already{span}"
        )
        return
    again = " (went on where it was interrupted)" if report.resumed else ""
    output.note(
        f"restored {entries_text(report.entries)} into {quoting.named(key)}{span} in "
        f"{output.span_text(seconds)}{again}"
    )
