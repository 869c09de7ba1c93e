"""The progress of a dump or a load on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from streamkeep.tools.base import output

if TYPE_CHECKING:
    from streamkeep.transfer.progress import Progress, ProgressCallback


@contextmanager
def shown_progress(label: str, *, sized: bool) -> Iterator[ProgressCallback]:
    """Yield what `streamkeep.transfer` calls; the first call shows a bar, where one is wanted.

    Args:
        sized: the work is counted in bytes.
    """
    with ExitStack() as stack:
        advance: output.Advance | None = None

        def moved(progress: Progress) -> None:
            nonlocal advance
            if advance is None:
                bar = output.progress(label, progress.total, sized=sized)
                advance = stack.enter_context(bar)
            advance(progress.done, progress.entries)

        yield moved
