"""What the threads of a store have failed at: logged once, and reported by `Store.durability`.

A thread that works for everybody has no caller to raise an error to, and must not end because of
one. It runs each piece of its work through `attempt`, and tries again later.
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
    """What fails at present, by the name of the work; safe to share between threads."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def attempt(self, work: str, run: Callable[..., object], *args: object) -> Exception | None:
        """Do some work; return the error when it fails.

        The same error of the same work is logged once; one that no layer expects, with its
        traceback.

        Args:
            work: what it is, such as "the sync of the journal".
        """
        try:
            run(*args)
        except Exception as error:
            self.note(work, error)
            return error
        self.clear(work)
        return None

    def note(self, work: str, error: Exception) -> None:
        """Note that some work has failed."""
        expected = isinstance(error, _EXPECTED)
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        if self._texts.get(work) != text:
            self._texts[work] = text
            log.error(
                "%s failed, and is tried again: %s",
                work,
                text,
                exc_info=None if expected else error,
            )

    def clear(self, work: str) -> None:
        """Note that some work was done."""
        if self._texts and self._texts.pop(work, None) is not None:
            log.info("%s works again", work)

    def texts(self) -> tuple[str, ...]:
        """Return what fails at present, each with its error; empty when all is well."""
        return tuple(f"{work}: {text}" for work, text in sorted(self._texts.copy().items()))


Error = TypeVar("Error", bound=BaseException)


def copy_of(error: Error) -> Error:
    """Return an error like this one for another thread or task to raise.

    Each raise adds to the traceback of its exception, and callers add notes, so that no exception
    object is for two of them. The copy has the original as its cause, whose traceback shows where
    it happened. An error that cannot be copied is returned as it is.
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
