"""changes: what each commit has done to streams, of a store or of a copy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.format import quoting
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.json_form import json_pairs
from streamkeep.format.humanize import count_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Ms
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import on_signals, open_store

if TYPE_CHECKING:
    from streamkeep.engine.feed.effects import Commit, Effect


@command(stops=True)
def changes(
    source: str,
    after: str | None = None,
    follow: bool = False,
    every: Ms = 500,
    scratch: Path | None = None,
) -> None:
    """Print what each commit of SOURCE has changed in streams, in order.

    SOURCE is a store, in use or not, or a copy that `streamkeep ship` keeps: a folder, or the URI
    of a folder in a bucket. Commits of all processes come, each once and whole. Of a store, those
    since its last checkpoint can be read, which is some seconds old; of a copy, all that it has.

    A line of text has the number of the commit, what has happened, the stream, and the rest. With
    --json, a line is a commit, with its position and all its effects; also commits without any.

    Examples:
      streamkeep changes orders.store
      streamkeep changes orders.copy --json

    Args:
        after (--from COMMIT): Begin after this commit: its number, or its position, which also
            proves that it is the commit that was read. $ is the newest one; without this option,
            the feed begins after the oldest one that is possible.
        follow (-f): Continue with new commits as they come, until Ctrl-C.
        every: How often to look for new pieces of a copy, with --follow.
        scratch (FOLDER): Where the rows of a copy are while it is read, in place of the folder for
            temporary files.
    """
    from streamkeep.engine.feed.effects import parse_position
    from streamkeep.engine.feed.feed import NOW

    if after is not None and after != NOW:
        try:
            parse_position(after)
        except ArgumentError:
            problem = f"{after!r} is neither the number nor the position of a commit, nor $"
            raise click.BadParameter(problem, param_hint="--from") from None
    stop = Event()
    if follow:
        on_signals(stop.set)
    commits = effects = 0
    position = "" if after is None or after == NOW else after  # where no commit comes
    with _feed(source, after, follow, every, scratch, stop) as found:
        for commit in found:
            commits, effects = commits + 1, effects + len(commit.effects)
            position = commit.position
            _show(commit)
            if follow:
                sys.stdout.flush()
    told = "no commits: a store has only those since its last checkpoint"
    if commits:
        told = f"{count_text(effects, 'effect')} of {count_text(commits, 'commit')}"
        told += f"; --from {position} goes on"
    output.total(told, commits=commits, effects=effects, position=position)


@contextmanager
def _feed(
    source: str, after: str | None, follow: bool, every: int, scratch: Path | None, stop: Event
) -> Iterator[Iterator[Commit[bytes]]]:
    """Provide the feed of a copy, or of a store, which is open meanwhile."""
    from streamkeep.format.copies.head import HEAD

    if "://" in source or (Path(source) / HEAD).exists():
        from streamkeep.recovery.copies.changes import changes as changes_of_copy

        yield changes_of_copy(
            source, after, follow=follow, every=every / 1000, stop=stop.is_set, scratch=scratch
        )
        return
    with open_store(Path(source), readonly=True) as store:
        yield store.changes(after, block=0 if follow else None, stop=stop.is_set)


def _show(commit: Commit[bytes]) -> None:
    """Print a commit."""
    if common.as_json():
        told = [_members(one) for one in commit.effects]
        output.json_line("commit", number=commit.number, position=commit.position, effects=told)
        return
    for one in commit.effects:
        parts = [f"{commit.number}", one.kind, quoting.shown(one.key, " ")]
        for role, name in (("group", one.group), ("consumer", one.consumer), ("to", one.name)):
            if name is not None:
                parts.append(f"{role}={quoting.shown(name, ' ')}")
        if one.ids:
            parts.append(" ".join(map(bytes.decode, one.ids)))
        if one.kind in _COUNTED:
            parts.append(f"{_COUNTED[one.kind]}={one.number}")
        if one.fields is not None:
            parts.append(quoting.pairs_text(one.pairs))
        output.line("  ".join(parts))


_COUNTED: Final = {
    "id_set": "added",
    "trimmed": "count",
    "group_created": "read",
    "group_moved": "read",
    "delivered": "deliveries",
    "returned": "deliveries",
}


def _members(one: Effect[bytes]) -> dict[str, Any]:
    """Return an effect as an object of JSON, without what its kind does not have."""
    members = {
        "kind": one.kind,
        "key": one.key,
        "group": one.group,
        "consumer": one.consumer,
        "name": one.name,
        "ids": [id_.decode() for id_ in one.ids] or None,
        "fields": None if one.fields is None else json_pairs(one.pairs),
        "number": one.number if one.kind in _COUNTED else None,
        "time_ms": one.time_ms or None,
    }
    return {name: value for name, value in members.items() if value is not None}
