"""What all jobs on Spark share: options, a session, checks before it starts, the report.

Spark is loaded when a job runs, not before: other commands must not wait for it, and must work
without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Bytes
from streamkeep.tools.base.opening import note_opened
from streamkeep.tools.base.statuses import Exit, Failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamkeep.pipeline.distribution.units import Report

Function = TypeVar("Function", bound=Callable[..., Any])

_URI: Final = re.compile(r"[a-z][a-z0-9]+:/")
_META: Final = "streamkeep.spark."


def _job_option(name: str, **settings: Any) -> Callable[[Function], Function]:
    """Return an option that `running` reads, so that no job needs to pass it on."""

    def keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
        ctx.meta[f"{_META}{param.name}"] = value

    return click.option(name, expose_value=False, callback=keep, **settings)


def job_options(function: Function) -> Function:
    """Add the options of all jobs: where Spark runs, and its settings."""
    for add in (
        _job_option(
            "--conf",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting of Spark; may be given again.",
        ),
        _job_option(
            "--ship-code", is_flag=True, help="Send this package to executors that do not have it."
        ),
        _job_option(
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
            type=Bytes(),
            multiple=True,
            metavar="KEY",
            help="Take this stream; may be given again. All without it.",
        ),
    ):
        function = add(function)
    return function


def data_loss_option(function: Function) -> Function:
    """Add --fail-on-data-loss."""
    return click.option(
        "--fail-on-data-loss/--no-fail-on-data-loss",
        default=True,
        show_default=True,
        help="Refuse a stream of which entries were lost before they could be read.",
    )(function)


def texts(streams: tuple[bytes, ...]) -> list[str] | None:
    """Return keys as the text that jobs take; None for no keys."""
    from streamkeep.arrow.keys import key_text

    return [key_text(one) for one in streams] or None


def tail_export_option(function: Function) -> Function:
    """Add --tail-export."""
    return click.option(
        "--tail-export",
        metavar="FOLDER",
        help="For executors on other hosts: a folder for entries in no segment, during the job.",
    )(function)


def staging_option(function: Function) -> Function:
    """Add --staging."""
    return click.option(
        "--staging",
        metavar="FOLDER",
        help="For executors on other hosts: a folder for their results, which the driver reads.",
    )(function)


def lake_argument(function: Function) -> Function:
    """Add the argument LAKE."""
    return click.argument("lake", metavar="LAKE")(function)


# --- a job ---------------------------------------------------------------------------------------


@contextmanager
def running() -> Iterator[SparkSession]:
    """Start Spark for a job, as `job_options` say, and stop it."""
    from streamkeep.pipeline.spark_session.start import QUIET_JVM, missing, session

    meta = click.get_current_context().meta
    master = meta[f"{_META}master"]
    conf: dict[str, object] = {"spark.driver.extraJavaOptions": QUIET_JVM}
    for setting in meta[f"{_META}conf"]:
        name, found, value = setting.partition("=")
        if not found or not name:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="--conf")
        conf[name] = value

    started = session(
        master,
        fast_start=master.startswith("local"),
        ship_code=meta[f"{_META}ship_code"],
        **conf,
    )
    try:
        yield started
    except ModuleNotFoundError as error:
        raise missing(error) from error
    finally:
        started.stop()


def check_store(path: Path) -> None:
    """Report a problem of a store before Spark is started, which takes seconds."""
    from streamkeep.engine.api.store import Store

    if _URI.match(str(path)) and not path.exists():  # one slash of it is gone by now
        raise Failure(
            f"{path}: a store must be on a disk of the host on which the command runs; URIs are "
            "for lakes, --tail-export and --staging"
        )
    note_opened(path)  # a command may have several: the error is about this one
    Store(path, readonly=True, create=False).close()


def check_place(place: str) -> None:
    """Report a bucket that cannot be reached. If the extra is missing, `running` reports that."""
    try:
        from streamkeep.pipeline.storage.places import check, plain
    except ImportError:
        return
    check(plain(place))


def check_lake(lake: str) -> None:
    """Report a problem of a lake. If the extra is missing, `running` reports that."""
    try:
        from streamkeep.pipeline.lake.files import NoSuchLakeError
        from streamkeep.pipeline.lake.table import Lake
    except ImportError:
        return
    try:
        Lake.open(lake)
    except NoSuchLakeError as error:
        code = type(error).__name__
        raise Failure(str(error), status=Exit.MISSING, code=code) from error


def check_streams(streams: tuple[bytes, ...], pattern: str | None) -> None:
    """Refuse two ways to choose streams."""
    if streams and pattern is not None:
        raise click.UsageError("give --stream or --pattern, not both")


def tell(report: Report, summary: str) -> None:
    """Print what a job did; end with the status for damage if it found a problem."""
    if common.as_json():
        for problem in report.problems:
            output.json_line("problem", problem=problem)
        facts = report.as_json()
        del facts["type"], facts["job"]
        output.summary(**facts)
    else:
        for problem in report.problems:
            output.line(problem)
        output.note(f"{summary}, in {output.span_text(report.seconds)}")
    if report.problems:
        raise click.exceptions.Exit(Exit.DAMAGED)
