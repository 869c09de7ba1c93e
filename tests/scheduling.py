"""Which process of pytest-xdist runs which tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling


class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Each test is run by whatever process is free, but for what is costly to begin.

    All tests that need a session of Spark are run by one process, and so are those of a file that
    has something begun once for all of them: else each process would begin a server of its own.
    Groups of pytest-xdist cannot do this: with pytest 9.2 their marks have no effect. The tests of
    the pipeline that need no session are in files of their own, and do not wait for that process.

    A run whose process died goes on to its end, unlike with the class that this one is made of:
    there the new process waits without end if it gets a single test, or tests that all have run,
    and the test that ended the process is run again until no process may be started any more.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        return _together(self.config.rootpath, path) or nodeid

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
def _together(root: Path, path: str) -> str:
    """Return the name under which the tests of a file are run by one process; none if they need not
    be."""
    text = (root / path).read_text()
    if path.startswith("tests/spark/") and "pytest.mark.spark" in text:
        return "spark"
    return path if 'scope="module"' in text else ""
