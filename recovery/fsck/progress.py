"""The progress and the thoroughness of a check."""

from __future__ import annotations

from collections.abc import Callable


class Progress:
    """The progress of a check, in steps: a step is a page of LMDB's trees, or a macro node.

    Attributes:
        total: number of steps; 0 until it is known.
        done: steps completed.
        size_bytes: size of all pages that the store uses.
        streams, nodes: how many were checked.
        commit_number: the commit as of which the store is checked; 0 if it is unknown.
    """

    def __init__(self, moved: Callable[[Progress], None] | None = None) -> None:
        self.total = 0
        self.done = 0
        self.size_bytes = 0
        self.streams = 0
        self.nodes = 0
        self.commit_number = 0
        self._moved = moved

    def begin(self, steps: int) -> None:
        self.total = steps
        self.advance(0)

    def advance(self, steps: int) -> None:
        """Add completed steps, and report the progress."""
        self.done += steps
        if self._moved is not None:
            self._moved(self)


class Scope:
    """Options of the checks: `quick` reads only some entries, `progress` receives the progress."""

    def __init__(self, quick: bool = False, progress: Progress | None = None) -> None:
        self.quick = quick
        self.progress = progress or Progress()
