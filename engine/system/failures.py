"""Failures of a store's background threads: logged once, and reported by `Store.durability`.

A background thread has no caller to raise an error to, and an error must not end it. It runs each
piece of work through `attempt` and tries again later.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import TypeVar

import lmdb

from streamkeep.format.core.errors import StreamkeepError

log = logging.getLogger("streamkeep")

_EXPECTED = (StreamkeepError, lmdb.Error, OSError)


class Failures:
    """The current failures, by the name of the work; safe to share between threads."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def attempt(self, work: str, run: Callable[..., object], *args: object) -> Exception | None:
        """Do some work; return the error if it fails.

        The same error of the same work is logged once. An unexpected error is logged with its
        traceback.

        Args:
            work: its name in messages, such as "the sync of the journal".
        """
        try:
            run(*args)
        except Exception as error:
            expected = isinstance(error, _EXPECTED)
            text = str(error) if expected else f"{type(error).__name__}: {error}"
            if self._texts.get(work) != text:
                self._texts[work] = text
                trace = None if expected else error
                log.error("%s failed and will be tried again: %s", work, text, exc_info=trace)
            return error
        if self._texts and self._texts.pop(work, None) is not None:
            log.info("%s works again", work)
        return None

    def texts(self) -> tuple[str, ...]:
        """Return the current failures, each with its error; empty if there are none."""
        return tuple(f"{work}: {text}" for work, text in sorted(self._texts.copy().items()))


Error = TypeVar("Error", bound=BaseException)


def copy_of(error: Error) -> Error:
    """Return a copy of an error for another thread or task to raise.

    Two callers cannot raise the same exception object: each raise adds to its traceback, and
    callers add notes. The cause of the copy is the original, whose traceback shows where it
    happened. An error that cannot be copied is returned as it is.
    """
    try:
        copied = copy.copy(error)
    except Exception:
        return error
    if type(copied) is not type(error):
        return error
    notes = getattr(error, "__notes__", None)
    if notes is not None:
        copied.__notes__ = list(notes)
    copied.__cause__ = error
    return copied
