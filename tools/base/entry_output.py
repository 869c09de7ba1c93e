"""How entries are printed: what `range`, `tail` and `info --full` share.

A line of text begins with the ID, and a JSON object has it as `id`: `erase -` reads either.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamkeep.format import quoting
from streamkeep.format.core.json_form import json_pairs
from streamkeep.format.humanize import time_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.statuses import Exit, Failure

if TYPE_CHECKING:
    from streamkeep.engine.api.read_commands import ScanEntry
    from streamkeep.engine.api.views import Snapshot


def print_entry(entry: ScanEntry, *, show_time: bool = False) -> None:
    """Print one entry on one line."""
    ms, pairs = entry.stream_id.ms, entry.pairs
    if common.as_json():
        output.json_line("entry", id=entry.id.decode(), time_ms=ms, fields=json_pairs(pairs))
        return
    clock = f"  {time_text(ms)}" if show_time else ""
    output.line(f"{entry.id.decode()}{clock}  {quoting.pairs_text(pairs)}")


def check_exists(snapshot: Snapshot, *keys: bytes) -> None:
    """End the command with the status for what is missing, where none of the streams exists.

    A missing stream answers like an empty one, so the answer is printed before.
    """
    if not any(map(snapshot.exists, keys)):
        raise no_stream(click.get_current_context().params["store_path"], *keys)


def no_stream(path: Path, *keys: bytes) -> Failure:
    """Return the error for streams that do not exist."""
    names = ", ".join(map(quoting.named, dict.fromkeys(keys)))
    return Failure(
        f"no stream {names} in {path}",
        hint=f"streamkeep streams {shlex.quote(str(path))}",
        status=Exit.MISSING,
        code="NoSuchKeyError",
    )
