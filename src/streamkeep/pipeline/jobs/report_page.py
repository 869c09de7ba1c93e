"""The files of a report: one HTML page, which contains its plots, and each table as CSV."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamkeep.format.core.durations import duration_text
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.humanize import size_text
from streamkeep.supported import install_hint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_STYLE: Final = """
:root { color-scheme: light dark; --line: #d8dde3; --soft: #66707c; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2.5rem auto;
       padding: 0 1rem }
p { color: var(--soft); margin-top: 0 }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right }
img { width: 100%; background: white; border-radius: 6px }
"""
Draw = Callable[["Axes"], None]


class PlotMissingError(StreamkeepError):
    """matplotlib is not installed."""


def check_plots() -> None:
    """Raise PlotMissingError if plots cannot be made."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotMissingError(
            f"a report needs matplotlib, which is not installed; next: {install_hint('plot')}"
        ) from None


class Page:
    """Collects sections, and writes their files."""

    def __init__(self, folder: Path, title: str, note: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._title = folder, html.escape(title)
        self._parts = [f"<h1>{self._title}</h1>\n<p>{html.escape(note)}</p>"]
        self.files: list[Path] = []

    def add(
        self,
        name: str,
        title: str,
        headings: Sequence[str],
        rows: Sequence[Sequence[Any]],
        draw: Draw | None = None,
        *,
        height: float = 4.2,
        table: bool = False,
    ) -> None:
        """Add a section: numbers as `name.csv`, their plot as `name.png`, and perhaps a table."""
        import pandas as pd

        frame = pd.DataFrame(list(rows), columns=list(headings), dtype=object)
        self._parts.append(f"<h2>{html.escape(title)}</h2>")
        if table:
            shown = frame.apply(lambda column: column.map(lambda cell: _shown(column.name, cell)))
            self._parts.append(shown.to_html(index=False, border=0))
        if draw is not None:
            picture = _picture(draw, height)
            self._keep(f"{name}.png").write_bytes(picture)
            data = base64.b64encode(picture).decode()
            alt = html.escape(title)
            self._parts.append(f'<img alt="{alt}" src="data:image/png;base64,{data}">')
        frame = frame.map(quoted).rename(columns=quoted)
        frame.to_csv(self._keep(f"{name}.csv"), index=False)
        self._parts.append(f'<p><a href="{name}.csv">{name}.csv</a></p>')

    def close(self) -> None:
        """Write the page."""
        self._keep("index.html").write_text(
            "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport "
            f"content='width=device-width, initial-scale=1'>\n<title>{self._title}</title>\n"
            f"<style>{_STYLE}</style>\n" + "\n".join(self._parts) + "\n</html>\n",
            encoding="utf-8",
        )

    def _keep(self, name: str) -> Path:
        self.files.append(self._folder / name)
        return self.files[-1]


def _picture(draw: Draw, height: float) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    draw(axes)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        figure.legend(loc="outside upper left", ncols=4, frameon=False)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    return data.getvalue()


def bars(names: Sequence[str], parts: Mapping[str, Sequence[float]], unit: str) -> Draw:
    """Return what draws a bar for each name, of parts one behind the other."""

    def draw(axes: Axes) -> None:
        begins = [0.0] * len(names)
        for part, values in parts.items():
            axes.barh(range(len(names)), values, left=begins, label=part)
            begins = [a + b for a, b in zip(begins, values, strict=True)]
        axes.set_yticks(range(len(names)), [label(name) for name in names])
        axes.set_xlabel(unit)
        shown = size_text if unit == "bytes" else "{:,.0f}".format
        axes.xaxis.set_major_formatter(lambda value, _: shown(int(value)))

    return draw


def label(text: str) -> str:
    """Return text for matplotlib with `$` escaped, which would begin mathematics."""
    return (text if len(text) <= 40 else text[:39] + "…").replace("$", r"\$")


def quoted(cell: Any) -> Any:
    """Return a cell for CSV, quoted if a spreadsheet would take it for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def unquoted(cell: str) -> str:
    """Return a text from the cell of a CSV file that `quoted` made."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def _shown(heading: str, cell: Any) -> str:
    """Return a cell for the page: sizes, times in milliseconds, and other numbers."""
    if cell is None or isinstance(cell, str):
        return cell or "-"
    if "size" in heading:
        return size_text(cell)
    if heading.endswith("ms"):
        return duration_text(cell)
    return f"{cell:,.1f}" if isinstance(cell, float) else f"{cell:,}"
