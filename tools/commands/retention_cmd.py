"""`streamkeep retention`: how much of a stream is kept, and whether the rest is archived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamkeep.format import quoting
from streamkeep.format.core import durations
from streamkeep.format.humanize import entries_text, size_text
from streamkeep.format.rows.retention import Retention
from streamkeep.tools.base import output
from streamkeep.tools.base.arguments import Age, Limit, SizeBytes, StorePath
from streamkeep.tools.base.command import group_command
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.commands.entry_cmds import no_stream


def _seconds(ms: int | None) -> float | None:
    """Return an age for Python; -1 and None as they are."""
    return ms if ms is None or ms < 0 else ms / 1000


@group_command()
def retention() -> None:
    """Set how much of a stream is kept, and if the rest is archived.

    Example:
      streamkeep retention set orders.store orders --max-age 30d --archive
      streamkeep retention show orders.store
    """


@dataclass
class Settings:
    """The settings of a stream; None for one that stays.

    Args:
        maxlen (N|none): How many entries stay.
        max_age (30d|none): Maximum age of entries, by the time in their IDs, such as 12h or 30d.
        max_bytes (64M|none): Size of the macro nodes; whole nodes are removed, and the newest
            stays.
        archive: Archive what is trimmed.
        archive_deleted: With --archive: archive also what is deleted.
        keep_unacknowledged: Keep entries until every group has read and acknowledged them.
        keep_max_bytes (1G|none): Size of the macro nodes at which waiting for groups ends; see
            --when-full.
        when_full: Beyond --keep-max-bytes: refuse new entries, or trim anyway.
        approximate (--approximate/--exact): Remove only whole macro nodes, which is cheaper, or to
            the entry.
        archive_max_age (365d|none): Maximum age of archived entries; older segments are removed.
    """

    maxlen: Limit | None = None
    max_age: Age | None = None
    max_bytes: SizeBytes | None = None
    archive: bool | None = None
    archive_deleted: bool | None = None
    keep_unacknowledged: bool | None = None
    keep_max_bytes: SizeBytes | None = None
    when_full: Literal["refuse", "trim"] | None = None
    approximate: bool | None = None
    archive_max_age: Age | None = None


@retention.command("set")
def set_(store_path: StorePath, key: bytes, *, create: bool = False, settings: Settings) -> None:
    """Change the retention of KEY; options that are not given stay.

    From now on, appends keep the stream within its limits. `streamkeep archive run` removes what is
    already beyond them, also from streams without appends.

    Examples:
      streamkeep retention set orders.store orders --max-age 30d --archive
      streamkeep retention set orders.store orders --maxlen none --max-bytes 2G --approximate

    Args:
        create: Create KEY, empty, where there is no such stream.
    """
    with open_store(store_path) as store, store.transaction() as transaction:
        if not create and not transaction.exists(key):
            raise no_stream(store_path, key, hint="; --create makes the stream")
        options = vars(settings)
        options |= {name: _seconds(options[name]) for name in ("max_age", "archive_max_age")}
        now = transaction.set_retention(key, **options)
    output.result(f"{quoting.named(key)}: {told(now)}", key=key, **now._asdict())


@retention.command("show")
def show(store_path: StorePath, key: bytes | None = None) -> None:
    """Show the retention of KEY, or of all streams that have one.

    Example:
      streamkeep retention show orders.store
    """
    shown = 0
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        if key is not None and not snapshot.exists(key):
            raise no_stream(store_path, key)
        for name in [key] if key is not None else list(snapshot.scan_iter()):
            settings = snapshot.retention(name)
            if key is None and settings == Retention():
                continue
            shown += 1
            text = f"{quoting.named(name)}: {told(settings)}"
            output.item("retention", text, key=name, **settings._asdict())
    nothing = "no stream has a retention: entries stay until a command removes them"
    output.total("" if shown else nothing, streams=shown)


def told(settings: Retention) -> str:
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
