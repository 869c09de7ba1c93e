"""Which process of pytest-xdist runs which tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

_ROOT: Final = Path(__file__).resolve().parent.parent


class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Each test is run by whatever process is free; those that need a session of Spark by one.

    Groups of pytest-xdist cannot do this: with pytest 9.2 their marks have no effect. The tests of
    the pipeline that need no session are in files of their own, and do not wait for that process.

    A run whose process died goes on to its end, unlike with the class that this one is made of:
    there the new process waits without end if it gets a single test, or tests that all have run,
    and the test that ended the process is run again until no process may be started any more.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if _needs_spark(nodeid.split("::")[0]) else nodeid

    def schedule(self) -> None:
        """Give work to processes that have none: two tests, for the first one waits for a second.

        A process that gets no second one is told that none will come, and runs the first.
        """
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        """Give what a process has not run to others, but for the test that it died in."""
        work = self.assigned_work.pop(node)
        left = [
            (scope, test) for scope, unit in work.items() for test, done in unit.items() if not done
        ]
        for scope, test in left[1:]:
            self.workqueue.setdefault(scope, {})[test] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0][1] if left else None


@cache
def _needs_spark(path: str) -> bool:
    """Return whether some tests of a file need a session of Spark."""
    return path.startswith("tests/spark/") and "pytest.mark.spark" in (_ROOT / path).read_text()
