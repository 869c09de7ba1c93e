"""What the plots of a report have in common: their size, legends, labels and dates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(height: float = 4.2) -> tuple[Figure, Axes]:
    """Return a figure with one plot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(figure: Figure) -> None:
    """Add a legend above the plot, where it covers nothing."""
    figure.legend(loc="outside upper left", ncols=4, frameon=False)


def label(text: str) -> str:
    """Return text for matplotlib with `$` escaped, which would begin mathematics."""
    short = text if len(text) <= 40 else text[:39] + "…"
    return short.replace("$", r"\$")


def dates(axes: Axes) -> None:
    """Label the times of the horizontal axis."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    ticks = AutoDateLocator(maxticks=10)  # type: ignore[no-untyped-call]
    dates = ConciseDateFormatter(ticks, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(dates)
