"""What an exception says, as texts that can be stored and logged.

An exception of a handler can do anything: its text may have half of a surrogate pair, as names of
files have, or any length, and its `__str__` may itself raise. A job whose failure cannot be booked
would come back to every worker.
"""

from __future__ import annotations

import traceback
from typing import Final, NamedTuple

MOST_TEXT: Final = 20_000  # characters


class ErrorTexts(NamedTuple):
    """What an exception says.

    Attributes:
        kind: its class, such as `builtins.ValueError`.
        text: its text.
        traceback_text: its traceback, as Python prints it; the end, if it is long.
    """

    kind: str
    text: str
    traceback_text: str


def texts_of(error: BaseException) -> ErrorTexts:
    """Return what an exception says."""
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception as problem:  # a class with its own idea of `__cause__` or `__notes__`
        lines = f"the traceback cannot be printed: {type(problem).__name__}"
    return ErrorTexts(kind_of(error), text_of(error), plain(lines[-MOST_TEXT:]))


def kind_of(error: BaseException) -> str:
    """Return the class of an exception, such as `builtins.ValueError`."""
    kind = type(error)
    return plain(f"{kind.__module__}.{kind.__qualname__}")


def text_of(error: BaseException) -> str:
    """Return the text of an exception."""
    try:
        text = str(error)
    except Exception as problem:
        return f"its text cannot be made: {type(problem).__name__}"
    return plain(text)


def plain(text: str) -> str:
    r"""Return a text that can be encoded, a surrogate as `\udc80`, and cut if it is long."""
    found = text[: MOST_TEXT + 1].encode(errors="backslashreplace").decode()
    if len(found) <= MOST_TEXT:
        return found
    note = f"... ({len(text):,} characters)"
    return found[: MOST_TEXT - len(note)] + note
