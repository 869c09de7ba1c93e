"""`streamkeep retention`: how much of a stream is kept, and whether the rest is archived."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.format import quoting
from streamkeep.format.core import durations, json_form
from streamkeep.format.core.durations import MEANT, parse_duration
from streamkeep.format.humanize import entries_text, size_text
from streamkeep.format.rows.retention import NONE, Retention
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Bytes, key_argument, store_argument
from streamkeep.tools.base.command import group_command
from streamkeep.tools.base.entry_output import check_exists
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.statuses import Exit, Failure

if TYPE_CHECKING:
    _IntType = click.ParamType[int]
else:
    _IntType = click.ParamType  # generic in newer versions only

_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]+) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)
_NO_LIMIT: Final = "none"


class Limit(_IntType):
    """A number, or `none` for no limit."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; -1 for none."""
        text = str(value).strip().lower()
        if text == _NO_LIMIT:
            return -1
        number = self.parse(text)
        if number is None or number >= NONE:
            self.fail(f"{value!r} is not {self.meant}", param, ctx)
        return number

    meant = "a number, or none"

    def parse(self, text: str) -> int | None:
        """Return the number that a text says; None when it says none."""
        return int(text) if text.isascii() and text.isdigit() else None


class Age(Limit):
    """A duration, or `none` for no limit."""

    meant = f"{MEANT}, or none"

    def parse(self, text: str) -> int | None:
        """Return milliseconds."""
        try:
            return parse_duration(text)
        except ValueError:
            return None


def _seconds(ms: int | None) -> float | None:
    """Return an age for Python; -1 and None as they are."""
    return ms if ms is None or ms < 0 else ms / 1000


class Size(Limit):
    """A number of bytes, perhaps with a unit."""

    meant = "a size such as 500000, 64M or 2G, or none"

    def parse(self, text: str) -> int | None:
        """Return bytes."""
        found = _SIZE.fullmatch(text)
        return None if found is None else int(found[1]) * _SIZES[found[2].lower()]


@group_command()
def retention() -> None:
    """Set how much of a stream is kept, and if the rest is archived.

    \b
    Example:
      streamkeep retention set orders.store orders --max-age 30d --archive
      streamkeep retention show orders.store
    """


@retention.command("set")
@store_argument
@key_argument
@click.option("--maxlen", type=Limit(), metavar="N|none", help="How many entries stay.")
@click.option(
    "--max-age",
    type=Age(),
    metavar="30d|none",
    help="Maximum age of entries, by the time in their IDs, such as 12h or 30d.",
)
@click.option(
    "--max-bytes",
    type=Size(),
    metavar="64M|none",
    help="Size of the macro nodes; whole nodes are removed, and the newest stays.",
)
@click.option("--archive/--no-archive", default=None, help="Archive what is trimmed.")
@click.option(
    "--archive-deleted/--no-archive-deleted",
    default=None,
    help="With --archive: archive also what is deleted.",
)
@click.option(
    "--keep-unacknowledged/--no-keep-unacknowledged",
    default=None,
    help="Keep entries until every group has read and acknowledged them.",
)
@click.option(
    "--keep-max-bytes",
    type=Size(),
    metavar="1G|none",
    help="Size of the macro nodes at which waiting for groups ends; see --when-full.",
)
@click.option(
    "--when-full",
    type=click.Choice(["refuse", "trim"]),
    help="Beyond --keep-max-bytes: refuse new entries, or trim anyway.",
)
@click.option(
    "--approximate/--exact",
    default=None,
    help="Remove only whole macro nodes, which is cheaper, or to the entry.",
)
@click.option(
    "--archive-max-age",
    type=Age(),
    metavar="365d|none",
    help="Maximum age of archived entries; older segments are removed.",
)
@click.option("--create", is_flag=True, help="Create KEY, empty, where there is no such stream.")
def set_(store_path: Path, key: bytes, create: bool, **options: Any) -> None:
    """Change the retention of KEY; options that are not given stay.

    From now on, appends keep the stream within its limits. `streamkeep archive run` removes what is
    already beyond them, also from streams without appends.

    \b
    Examples:
      streamkeep retention set orders.store orders --max-age 30d --archive
      streamkeep retention set orders.store orders --maxlen none --max-bytes 2G --approximate
    """
    with open_store(store_path) as store, store.transaction() as transaction:
        if not create and not transaction.exists(key):
            hint = f"streamkeep streams {shlex.quote(str(store_path))}; --create makes the stream"
            problem = f"no stream {quoting.named(key)} in {store_path}"
            raise Failure(problem, hint=hint, status=Exit.MISSING, code="NoSuchKeyError")
        options |= {name: _seconds(options[name]) for name in ("max_age", "archive_max_age")}
        settings = transaction.set_retention(key, **options)
    output.result(
        f"{quoting.named(key)}: {told(settings)}",
        key=json_form.json_bytes(key),
        **settings._asdict(),
    )


@retention.command("show")
@store_argument
@click.argument("key", metavar="[KEY]", type=Bytes(), default=None, required=False)
def show(store_path: Path, key: bytes | None) -> None:
    """Show the retention of KEY, or of all streams that have one.

    \b
    Example:
      streamkeep retention show orders.store
    """
    shown = 0
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        if key is not None:
            check_exists(snapshot, key)
        for name in [key] if key is not None else list(snapshot.scan_iter()):
            settings = snapshot.retention(name)
            if key is None and settings == Retention():
                continue
            shown += 1
            if common.as_json():
                output.json_line("retention", key=json_form.json_bytes(name), **settings._asdict())
            else:
                output.line(f"{quoting.named(name)}: {told(settings)}")
    if common.as_json():
        output.summary(streams=shown)
    elif not shown:
        output.note("no stream has a retention: entries stay until a command removes them")


def told(settings: Retention) -> str:
    """Return settings as a sentence."""
    parts = []
    if settings.maxlen is not None:
        parts.append(f"at most {entries_text(settings.maxlen)}")
    if settings.max_age_ms is not None:
        parts.append(f"not older than {durations.duration_text(settings.max_age_ms, parts=5)}")
    if settings.max_bytes is not None:
        parts.append(f"at most {size_text(settings.max_bytes)}")
    if not parts:
        parts.append("all entries stay")
    elif settings.approximate:
        parts.append("by whole nodes")
    if settings.keep_unacknowledged:
        parts.append("after every group has acknowledged")
        if settings.keep_max_bytes is not None:
            most = size_text(settings.keep_max_bytes)
            verb = "refuses entries" if settings.when_full == "refuse" else "trims anyway"
            parts.append(f"from {most} on it {verb}")
    gone = "what is trimmed or deleted" if settings.archive_deleted else "what is trimmed"
    parts.append(f"{gone} is archived" if settings.archive else "nothing is archived")
    if settings.archive_max_age_ms is not None:
        parts.append(
            f"segments for {durations.duration_text(settings.archive_max_age_ms, parts=5)}"
        )
    return ", ".join(parts)
