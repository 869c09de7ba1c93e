"""How results look: text for people, JSON for programs, and progress.

Results go to standard output, everything else to standard error. Text shows sizes as `1.2 GiB`
and times as `2024-06-10T07:33:20Z`; JSON is one object per line, in ASCII, with sizes in bytes and
times in Unix milliseconds.

`format/quoting.py` says how text shows keys, fields and values, and `format/core/json_form.py` how
JSON does.

rich is loaded only where a table or a progress bar is shown: it takes longer to load than most
commands take to run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from streamkeep.format import quoting
from streamkeep.format.core import json_form
from streamkeep.format.core.durations import duration_text
from streamkeep.format.humanize import entries_text, lost_texts, size_text
from streamkeep.tools.base import common
from streamkeep.tools.base.terminal import give_up, guard, of_stdout, unguarded, visible

_NAME_WIDTH: Final = 40


# --- text ---------------------------------------------------------------------------------------


def line(text: str) -> None:
    """Write one line of the result, to a buffered stream."""
    _emit(visible(text) + "\n")


def note(text: str) -> None:
    """Write one line that is not part of the result, after what was printed before."""
    flush()
    said = json_form.json_line("note", message=text) if common.as_json() else visible(text)
    unguarded(sys.stderr).write(said + "\n")
    sys.stderr.flush()


def _emit(text: str) -> None:
    try:
        if common.given().reader_gone:
            raise BrokenPipeError
        of_stdout(unguarded(sys.stdout).write, text)
    except BrokenPipeError:
        give_up()
        if common.given().stops:
            raise click.exceptions.Exit(0) from None


def flush() -> None:
    """Write what is buffered of the result; a reader that has gone needs none of it.

    The status of a command does not depend on that: it ends when it writes more of the result.
    """
    try:
        of_stdout(unguarded(sys.stdout).flush)
    except BrokenPipeError:
        common.given().reader_gone = True
        give_up()


def open_closed() -> None:
    """Open those of the standard streams that the caller has closed.

    The next file that is opened would get their number, and output of a library or a child would
    go into the store. Reading and writing fails; output to standard error is dropped.
    """
    ways = {"stdin": ("r", os.O_WRONLY), "stdout": ("w", os.O_RDONLY), "stderr": ("w", os.O_WRONLY)}
    for name, (mode, access) in ways.items():
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, access)
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8"))


def shell_key(key: bytes) -> str:
    text = quoting.shown(key)
    if not key:
        return "''"
    return f"--quoted-input {shlex.quote(text)}" if text.startswith('"') else shlex.quote(text)


def cut(text: str, width: int = _NAME_WIDTH) -> str:
    """Return the text, shortened when it is longer than a table column should be."""
    return text if len(text) <= width else text[: width - 1] + "…"


def note_losses(losses: Mapping[str, int]) -> None:
    """Write what a dump or a load has dropped."""
    for text in lost_texts(losses):
        note(f"dropped: {text}")


def span_text(seconds: float) -> str:
    return duration_text(1000 * seconds)


def seconds() -> float:
    """Return for how long the command has been running."""
    return round(time.perf_counter() - common.given().began, 3)


def taken() -> str:
    """Return for how long the command has been running, in words."""
    return span_text(seconds())


def number(value: int | None) -> str:
    """Return a number of a result, with thousands separators for people; - for one unknown."""
    if value is None:
        return "-"
    return f"{value:,}" if sys.stdout.isatty() else str(value)


Cell = str | int | None


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, left: Sequence[int]) -> None:
    """Write a table, if it has rows; columns are right-aligned, except those in `left`.

    A pipe gets it without the line below the headings and without thousands separators. A terminal
    that is too narrow gets each row as a block with one line per column: half a time is no time.
    """
    cells = [[visible(one) if isinstance(one, str) else number(one) for one in row] for row in rows]
    if not cells:
        return
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    for text in table_lines(headings, cells, left=left, width=width, ruled=terminal):
        line(text)


Row = TypeVar("Row")


def listing(
    kind: str,
    rows: Sequence[Row],
    members: Callable[[Row], dict[str, Any]],
    headings: Sequence[str],
    cells: Callable[[Row], Sequence[Cell]],
    *,
    left: Sequence[int],
) -> None:
    """Write a list: a JSON object of each row, or a table if there is a row.

    Args:
        kind: the type of the objects.
        members, cells: return what JSON and the table say of a row.
        left: as for `table`.
    """
    if common.as_json():
        for row in rows:
            json_line(kind, **members(row))
    else:
        table(headings, map(cells, rows), left=left)


def item(kind: str, text: str, /, **members: Any) -> None:
    """Write one part of a result: a line of text, or a JSON object of this type."""
    if common.as_json():
        json_line(kind, **members)
    else:
        line(text)


def total(text: str, **members: Any) -> None:
    """End a list: with a note, if there is one, or with a summary with these members."""
    if common.as_json():
        summary(**members)
    elif text:
        note(text)


def table_lines(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int],
    width: int | None,
    ruled: bool = False,
) -> list[str]:
    """Return the lines of a table; blocks with one line per column if it is wider than `width`.

    Args:
        left: the indexes of columns that are aligned to the left.
        width: how many characters a line may have. None for any number.
        ruled: whether a line is drawn below the headings.
    """
    from rich.cells import cell_len  # its own tables took 8 s for 20,000 rows

    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        return _blocks(headings, rows)
    lines = [headings, *rows]
    if ruled:
        lines.insert(1, ["─" * wide for wide in widths])
    made = []
    for row in lines:
        padded = []
        for index, (text, wide) in enumerate(zip(row, widths, strict=True)):
            space = " " * (wide - cell_len(text))
            padded.append(text + space if index in left else space + text)
        made.append("  ".join(padded).rstrip())
    return made


def _blocks(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the first column of each row as a line, and the others below it, indented."""
    width = max(map(len, headings))
    made = []
    for first, *others in rows:
        made.append(f"{headings[0]} {first}")
        made += [
            f"  {heading.ljust(width)}  {text}".rstrip()
            for heading, text in zip(headings[1:], others, strict=True)
        ]
    return made


# --- JSON ---------------------------------------------------------------------------------------


def json_line(kind: str, **members: Any) -> None:
    """Write one JSON object on one line; `type` is its first member."""
    _emit(json_form.json_line(kind, **members) + "\n")


def summary(**members: Any) -> None:
    """Write the last object of a result, which also says that the result is complete."""
    path = click.get_current_context().command_path.rstrip()
    json_line("summary", command=path.partition(" ")[2], **members)


def done(**members: Any) -> None:
    if common.as_json():
        summary(**members)


def result(text: str, **members: Any) -> None:
    """Write a result that is one line: as text, or as a summary with these members."""
    if common.as_json():
        summary(**members)
    else:
        line(text)


# --- progress -----------------------------------------------------------------------------------


# Takes what is done, of how much if that is known, and how many entries that is.
Advance = Callable[..., None]


@contextmanager
def progress(label: str, unit: str) -> Iterator[Advance]:
    """Show progress on standard error, if it is wanted; yield what moves it.

    Args:
        unit: what is counted, such as bytes.
    """
    wanted = common.given().progress
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda done, total=None, entries=None: None
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.markup import escape

    columns = (
        *(bars.TextColumn("{task.description}"), bars.BarColumn(bar_width=16)),
        *(bars.TaskProgressColumn(), bars.TextColumn("{task.fields[told]}")),
        bars.TimeRemainingColumn(),
    )
    console = Console(
        file=unguarded(sys.stderr), force_terminal=True if wanted else None, highlight=False
    )
    began = time.perf_counter()
    with bars.Progress(*columns, console=console, transient=True) as bar:
        guard()  # rich takes over the streams, to put other output above the bar
        task = bar.add_task(escape(cut(visible(label), 20)), total=None, told="")

        def advance(done: int, total: int | None = None, entries: int | None = None, /) -> None:
            passed = max(time.perf_counter() - began, 1e-9)
            if entries is not None:
                told = f"{entries_text(entries)}, {entries / passed:,.0f}/s"
            elif unit == "bytes":
                told = f"{size_text(done)}, {size_text(round(done / passed))}/s"
            else:
                told = f"{done:,} {unit}, {done / passed:,.0f}/s"
            bar.update(task, completed=done, total=total or None, told=told)

        yield advance
