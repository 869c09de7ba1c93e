"""How far a check is, and how thorough it has to be."""

from __future__ import annotations

from collections.abc import Callable


class Progress:
    """How far a check is, in steps: a page of LMDB's trees, or a macro node.

    Attributes:
        total: steps that there are; 0 until that is known.
        done: steps that were taken.
        size_bytes: of the pages that the store uses.
        streams, nodes: how many were checked.
    """

    def __init__(self, moved: Callable[[Progress], None] | None = None) -> None:
        self.total = 0
        self.done = 0
        self.size_bytes = 0
        self.streams = 0
        self.nodes = 0
        self._moved = moved

    def begin(self, steps: int) -> None:
        """Begin something of so many steps."""
        self.total = steps
        self.advance(0)

    def advance(self, steps: int) -> None:
        """Note that steps were taken."""
        self.done += steps
        if self._moved is not None:
            self._moved(self)


class Scope:
    """What every check of a stream is told: whether to be quick, and whom to tell how far it is."""

    def __init__(self, quick: bool = False, progress: Progress | None = None) -> None:
        self.quick = quick
        self.progress = progress or Progress()
