"""The words of a command: options, numbers, and the errors that Redis has for them.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mypy_extensions import i64

from streamkeep.format.core.errors import CommandError

NOT_AN_INTEGER: Final = "value is not an integer or out of range"
_MOST_DIGITS: Final = 19
_LIMIT: Final = 1 << 63
_INT: Final = 1 << 31
SHOWN: Final = 128  # bytes of the names of unknown commands in an error line


def option(word: bytes) -> bytes:
    """Return a word as Redis compares it with its options: capitals, up to a NUL."""
    if 0 in word:
        word = word[: word.find(b"\0")]
    return word.upper()


def integer(word: bytes, problem: str = NOT_AN_INTEGER) -> int:
    """Return the number that a word is, read as strictly as Redis reads it."""
    size: i64 = len(word)
    if 0 < size <= _MOST_DIGITS + 1:
        digits = word[1:] if word[0] == 45 else word
        if digits.isdigit() and (digits[0] != 48 or word == b"0"):
            number = int(word)
            if -_LIMIT <= number < _LIMIT:
                return number
    raise CommandError(problem)


def check_database(word: bytes) -> None:
    """Raise unless a word is the number of the one database."""
    number = integer(word)
    if not -_INT <= number < _INT:
        raise CommandError(f"value is out of range, value must between {-_INT} and {_INT - 1}")
    if number != 0:
        raise CommandError("DB index is out of range")


def options(
    words: list[bytes],
    at: int,
    valued: tuple[bytes, ...],
    flags: tuple[bytes, ...] = (),
    refused: Callable[[list[bytes], int], CommandError] | None = None,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the options from a place on, each with its value, one by one as they are read.

    Args:
        valued: options that one word follows; `flags`: those that stand alone.
        refused: returns the error for any other word, which is at a place; by default `syntax`.
    """
    while at < len(words):
        name = option(words[at])
        if name in flags:
            yield name, b""
            at += 1
        elif name in valued and at + 1 < len(words):
            yield name, words[at + 1]
            at += 2
        else:
            raise syntax() if refused is None else refused(words, at)


def syntax(detail: str = "") -> CommandError:
    return CommandError(f"syntax error, {detail}" if detail else "syntax error")


def wrong_count(name: str) -> CommandError:
    """Return the error for a wrong number of words; `name` is `xadd` or `xgroup|create`."""
    return CommandError(f"wrong number of arguments for '{name}' command")


def wrong_subcommand(words: list[bytes], at: int = 0) -> CommandError:
    sub = text_of(words[1])
    name = text_of(words[0]).upper()
    return CommandError(
        f"unknown subcommand or wrong number of arguments for '{sub}'. Try {name} HELP."
    )


def text_of(word: bytes) -> str:
    """Return a word as an error line has it: up to a NUL."""
    end = word.find(b"\0")
    return (word if end < 0 else word[:end]).decode("utf-8", "surrogateescape")
