"""How far a dump or a load is, for a caller that shows it or ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a dump or a load is.

    Attributes:
        entries: entries that were written, or are in the store, so far.
        done: what is done of the work: entries of a dump, bytes read of a file that is loaded.
        total: the work as a whole, in the same unit; None where it is unknown, as for a pipe. A
            dump counts the entries of a range at most.
    """

    entries: int
    done: int
    total: int | None


# Called every thousand entries or so, in the thread that called the library. What it raises ends
# the dump or load as any other error does.
ProgressCallback = Callable[[Progress], None]
