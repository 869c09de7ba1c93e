"""The words of one command, read from the left; errors are the lines of Redis."""

from __future__ import annotations

import re
from typing import Final

from streamkeep.format.core.errors import CommandError

NOT_AN_INTEGER: Final = "value is not an integer or out of range"
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_LIMITS: Final = range(-(1 << 63), 1 << 63)


class Words:
    """The words after the name of a command.

    Attributes:
        name: of the command, and of its subcommand where it has one: `XGROUP|CREATE`.
    """

    def __init__(self, name: str, words: list[bytes]) -> None:
        self.name = name
        self._words = words
        self._at = 0

    def __len__(self) -> int:
        return len(self._words) - self._at

    def check_count(self, least: int, *, exact: bool = False) -> None:
        """Refuse too few words, or any other number of them."""
        if len(self) < least or (exact and len(self) > least):
            raise self.wrong_count()

    def wrong_count(self) -> CommandError:
        """Return the error for a wrong number of words."""
        return CommandError(f"wrong number of arguments for '{self.name.lower()}' command")

    def next(self) -> bytes:
        """Take a word."""
        if not self:
            raise syntax()
        self._at += 1
        return self._words[self._at - 1]

    def take(self, count: int) -> list[bytes]:
        """Take several words."""
        return [self.next() for _ in range(count)]

    def rest(self) -> list[bytes]:
        """Take all words that are left."""
        return self.take(len(self))

    def peek(self) -> str:
        """Return the next word in capitals, without taking it; empty where there is none."""
        return self._words[self._at].decode("latin-1").upper() if self else ""

    def accept(self, *options: str) -> str:
        """Take the next word if it is one of these; return it in capitals, or nothing."""
        word = self.peek()
        if not self or word not in options:
            return ""
        self.next()
        return word

    def integer(self, problem: str = NOT_AN_INTEGER) -> int:
        """Take a number."""
        return integer(self.next(), problem)

    def end(self) -> None:
        """Refuse words that are left."""
        if self:
            raise syntax()


def syntax(detail: str = "") -> CommandError:
    """Return the error for words that do not fit together."""
    return CommandError(f"syntax error{', ' if detail else ''}{detail}")


def integer(word: bytes, problem: str = NOT_AN_INTEGER) -> int:
    """Return the number that a word is, read as strictly as Redis reads it."""
    if _INTEGER.fullmatch(word):
        number = int(word)
        if number in _LIMITS:
            return number
    raise CommandError(problem)


def ids_block(words: Words) -> list[bytes]:
    """Take `numids id ...`, which follows the word IDS."""
    count = words.integer("Number of IDs must be a positive integer")
    if count < 1:
        raise CommandError("Number of IDs must be a positive integer")
    if count > len(words):
        raise CommandError("The `numids` parameter must match the number of arguments")
    return words.take(count)
