"""What notebooks show: stores, streams, groups and entries as tables of HTML.

Names and values may be anything that a program stored, so all of them are escaped, and what is not
plain text is written with escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final, TypeVar

from streamkeep.format.core.entry import Entry
from streamkeep.format.humanize import size_text, time_text
from streamkeep.format.quoting import shown

MOST_ROWS: Final = 100
_MOST_TEXT: Final = 200

Item = TypeVar("Item")


class Listed(list[Item]):
    """A list of entries, or of facts of groups or consumers, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = self[:MOST_ROWS]
        if rows and isinstance(rows[0], Entry):
            return entries_html(rows, len(self))  # type: ignore[arg-type]
        columns = list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))
        cells = [[row.get(name, "") for name in columns] for row in rows if isinstance(row, dict)]
        return table_html(columns, cells, more=len(self) - len(rows))


class Facts(dict[str, Any]):
    """The properties of a stream, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return table_html(["property", "value"], [[name, one] for name, one in self.items()])


def entries_html(entries: Sequence[Entry[Any]], total: int) -> str:
    """Return entries as a table: ID, time, and a column for each field."""
    names = list(dict.fromkeys(name for entry in entries for name, _ in entry.pairs))[:MOST_ROWS]
    rows = []
    for entry in entries:
        values: dict[Any, list[str]] = {}
        for name, value in entry.pairs:
            values.setdefault(name, []).append(cell_text(value))
        cells = [" | ".join(values.get(name, ())) for name in names]
        rows.append([entry.id, time_text(entry.stream_id.ms), *cells])
    return table_html(["id", "time", *names], rows, more=total - len(entries))


def streams_html(title: str, streams: Iterable[Any], total: int) -> str:
    """Return the streams of a store, given as `StreamStat`, as a table."""
    rows = [
        [
            one.name,
            f"{one.length:,}",
            size_text(one.node_bytes),
            "" if one.first_ms is None else time_text(one.first_ms),
            "" if one.last_ms is None else time_text(one.last_ms),
        ]
        for one in streams
    ]
    head = ["stream", "entries", "size", "first", "last"]
    return f"<p>{escape(title)}</p>{table_html(head, rows, more=total - len(rows))}"


def table_html(head: Sequence[object], rows: Iterable[Sequence[object]], more: int = 0) -> str:
    """Return a table; `more` rows are only counted."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    if more > 0:
        lines.append(f'<tr><td colspan="{len(head)}">{more:,} more</td></tr>')
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell_text(cell))}</{tag}>' for cell in cells)}</tr>"


def cell_text(value: object) -> str:
    """Return a value as a cell shows it: printable, on one line, and not long."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    text = shown(value) if isinstance(value, bytes) else shown(str(value).encode())
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
