"""No test waits without end, wherever it waits: a plugin of pytest.

Tests wait at hundreds of places, for a line of another process, a lock, a thread, a socket. Three
rules bound them all:

- pytest-timeout raises in a test that takes too long. What the test does at its end may wait for
  the very process that hangs, and a call into C may never come back to Python: so a process of the
  tests that has not ended such a test `MORE_S` later prints its stacks and ends. pytest-xdist
  names the test and goes on in another process.
- A forked child prints its stacks and ends after `PATIENCE_S`: so its parent may wait for it.
- A forked child never goes on as a second pytest, which would take its parent's place in the run:
  what escapes from its part of a test, or comes back from it, ends it.

The thread that ends the process is one of C: it needs no lock of Python.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pytest_timeout import get_env_settings

from patience import PATIENCE_S

MORE_S: Final = 60.0
ESCAPED: Final = 70  # the exit status of a child that went on as its parent's test


class Limits:
    """The hooks, and the limit of the test that runs."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._terminal = os.dup(2)  # while a test runs, its output is captured
        self._limit_s: float | None = None
        os.register_at_fork(
            # Its thread would not be in the child, which would wait for it when it cancels.
            before=faulthandler.cancel_dump_traceback_later,
            after_in_parent=self._begin,
            after_in_child=lambda: faulthandler.dump_traceback_later(PATIENCE_S, exit=True, file=2),
        )

    def _begin(self) -> None:
        """Begin to wait; again from its beginning after a fork."""
        if self._limit_s is not None:
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=self._terminal)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Limit a whole test: its fixtures, its call, and the end of both."""
        marker = item.get_closest_marker("timeout")
        limit_s = marker.args[0] if marker else get_env_settings(self._config).timeout
        self._limit_s = (limit_s or PATIENCE_S) + MORE_S
        self._begin()
        try:
            return (yield)
        finally:
            self._limit_s = None
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Iterator[Any]:
        return (yield from _in_one_process())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Iterator[Any]:
        return (yield from _in_one_process())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Iterator[Any]:
        return (yield from _in_one_process())

    def pytest_unconfigure(self) -> None:
        """Limit the end of the process, which waits for threads."""
        if not hasattr(
            self._config, "workerinput"
        ):  # such a one waits for the others, and is ended
            self._limit_s = PATIENCE_S
            self._begin()


def _in_one_process() -> Iterator[Any]:
    """Run a part of a test, and end a child that comes back from it."""
    process = os.getpid()
    try:
        return (yield)
    finally:
        if os.getpid() != process:
            try:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(ESCAPED)
