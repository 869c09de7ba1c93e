"""fsck: say whether a store is sound, and what to do if it is not."""

from __future__ import annotations

import shlex
import time
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from streamkeep.format.humanize import count_text, size_text
from streamkeep.recovery.fsck.catalogue import CATALOGUE
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.fsck.progress import Progress
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Bytes, given_store, optional_store, refuse_options
from streamkeep.tools.base.command import command
from streamkeep.tools.base.statuses import Exit


def known_code(ctx: click.Context, param: click.Parameter, code: str | None) -> str | None:
    """Return a code as it is listed; refuse one that is not."""
    if code is not None and code.upper() not in CATALOGUE:
        near = get_close_matches(code.upper(), CATALOGUE, 5, 0)
        raise click.BadParameter(
            f"no such code: {code}; near it are {', '.join(sorted(near))}", ctx, param
        )
    return code and code.upper()


def explain(code: str) -> None:
    """Print a code's severity, meaning and advice."""
    kind = CATALOGUE[code]
    severity = kind.severity.name.lower()
    if common.as_json():
        members = {"severity": severity, "meaning": kind.meaning, "advice": kind.advice}
        output.json_line("explanation", code=code, **members)
        output.summary(explained=code)
    else:
        output.line(f"{code}: {severity}: {kind.meaning}")
        output.line(f"next: {kind.advice}")


@command(finishes=True)
@optional_store
@click.option(
    "--quick",
    is_flag=True,
    help="Check all rows, checksums and counts, but entries only at both ends of each stream.",
)
@click.option("--stream", "key", type=Bytes(), metavar="KEY", help="Check only this stream.")
@click.option(
    "--explain",
    "code",
    metavar="CODE",
    callback=known_code,
    help="Explain a code such as SK201, and what to do; needs no STORE.",
)
def fsck(store_path: Path | None, quick: bool, key: bytes | None, code: str | None) -> None:
    """Check STORE for damage; never change its data.

    Every check runs to the end: one bad row does not hide the next. A store in use is checked as of
    its newest commit; other processes may go on using it. Notes do not count as damage. The result
    is noted in the file STORE/last_check, for `streamkeep status`.

    \b
    Exit status: 0  clean
                 3  not a store, locked, or written by a newer version
                 4  damaged: see the findings, then `streamkeep repair --help`

    \b
    Examples:
      streamkeep fsck orders.store
      streamkeep fsck orders.store --quick --json
      streamkeep fsck --explain SK201
    """
    from streamkeep.recovery.fsck.last_check import note_check
    from streamkeep.recovery.fsck.store import check

    if code is not None:
        refuse_options("cannot be used with --explain", "store_path", "quick", "key")
        explain(code)
        return
    store_path = given_store(store_path)
    began = time.perf_counter()
    counts = dict.fromkeys(Severity, 0)
    with output.progress("checking", 100, sized=False, unit="pages") as advance:

        def show(state: Progress) -> None:
            advance(round(100 * state.done / max(1, state.total)), state.done)

        moved = Progress(show)
        for found in check(store_path, quick=quick, stream=key, progress=moved):
            counts[found.severity] += 1
            if common.as_json():
                members = found.as_json()
                output.json_line(members.pop("type"), **members)
            else:
                output.line(str(found))
    errors, warnings = counts[Severity.ERROR], counts[Severity.WARNING]
    damaged = errors + warnings > 0
    if key is None:
        note_check(store_path, moved.commit_number, errors, warnings, quick=quick)
    figures = {
        "verdict": "damaged" if damaged else "clean",
        "errors": errors,
        "warnings": warnings,
        "notes": counts[Severity.NOTE],
        "quick": quick,
        "streams": moved.streams,
        "nodes": moved.nodes,
        "size_bytes": moved.size_bytes,
    }
    _conclude(store_path, figures, time.perf_counter() - began)
    if damaged:
        click.get_current_context().exit(Exit.DAMAGED)


def _conclude(path: Path, figures: dict[str, Any], seconds: float) -> None:
    """Say what came of it, and what to do next."""
    output.done(path=str(path), **figures, seconds=round(seconds, 3))
    counted = [
        count_text(figures[f"{name}s"], name, f"{name}s")
        for name in ("error", "warning", "note")
        if figures[f"{name}s"]
    ]
    streams = count_text(figures["streams"], "stream", "streams")
    nodes = count_text(figures["nodes"], "node", "nodes")
    size = size_text(figures["size_bytes"])
    output.note(
        f"{path}: {', '.join([figures['verdict'], *counted])}; {streams}, {nodes}, {size} in "
        f"{output.span_text(seconds)}"
    )
    if figures["verdict"] == "damaged":
        store = shlex.quote(str(path))
        target = shlex.quote(f"{str(path).rstrip('/')}.repaired")
        output.note(f"next: streamkeep repair {store} --output {target}")
