"""What clients send: commands as arrays of bulk strings, or as lines that people type.

A parser keeps what is left of the bytes that it was fed, and the words of a command that has not
arrived whole. It never looks at a byte twice, except of a number that is cut off. Sizes are bounded
before memory is taken: a client that has not authenticated may send little.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.resp import split_line

MOST_WORDS: Final[i64] = 1 << 20
MOST_BULK: Final[i64] = 512 << 20
MOST_LINE: Final[i64] = 64 << 10
WORD_BYTES: Final[i64] = 48  # of memory for a word, beside its own
STRANGER_WORDS: Final[i64] = 10  # the limits before a client has authenticated are Redis's
STRANGER_BULK: Final[i64] = 16384

_STAR: Final[i64] = 42
_DOLLAR: Final[i64] = 36
_CR: Final[i64] = 13
_NO_NUMBER: Final[i64] = -(1 << 60)
_CUT_OFF: Final[i64] = -(1 << 61)


class ProtocolError(Exception):
    """What a client sent is not a command; the connection must be closed after the error line."""


class RequestParser:
    """Takes bytes, returns commands.

    Attributes:
        trusted: the client has authenticated, or need not.
        most_words, most_bulk: limits of a command, and of one of its words.
    """

    def __init__(self) -> None:
        self.trusted = True
        self.most_words: i64 = MOST_WORDS
        self.most_bulk: i64 = MOST_BULK
        self._data = b""
        self._at: i64 = 0
        self._parts: list[bytes] = []  # what follows `_data`, not joined yet
        self._size: i64 = 0  # bytes in `_data` and `_parts`
        self._needed: i64 = 0  # `_size` below which no word is complete
        self._words: list[bytes] = []
        self._left: i64 = 0  # words that are missing
        self._bulk: i64 = -1  # the length of the word that comes next
        self._held: i64 = 0  # bytes in `_words`

    def feed(self, data: bytes) -> None:
        if self._at == self._size:
            self._data = data
            self._at = 0
            self._size = len(data)
            return
        self._parts.append(data)
        self._size += len(data)

    def pending(self) -> int:
        """Return the number of bytes that it keeps, words with what Python needs for each."""
        return int(self._size - self._at + self._held + WORD_BYTES * len(self._words))

    def _join(self) -> None:
        if self._parts:
            self._parts.insert(0, self._data[self._at :])
            self._data = b"".join(self._parts)
            self._size -= self._at
            self._at = 0
            self._parts = []

    def next(self) -> list[bytes] | None:
        """Return the next command; None if it has not arrived.

        Raises:
            ProtocolError: with the line for the client.
        """
        if self._size < self._needed:
            return None
        self._needed = 0
        if self._parts:
            self._join()
        data = self._data
        while self._left == 0:
            if self._at >= self._size:
                return None
            if i64(data[self._at]) != _STAR:
                words = self._line()
                if words is None or words:
                    return words
                continue
            count = self._number(b"too big mbulk count string")
            if count == _CUT_OFF:
                return None
            if count == _NO_NUMBER or count > self.most_words:
                raise ProtocolError("invalid multibulk length")
            if count > STRANGER_WORDS and not self.trusted:
                raise ProtocolError("unauthenticated multibulk length")
            if count > 0:
                self._left = count
                self._words = []
                self._held = 0
        return self._rest(data)

    def _rest(self, data: bytes) -> list[bytes] | None:
        """Return the words of the command that has begun; None if some have not arrived."""
        words = self._words
        size = self._size
        at = self._at
        bulk = self._bulk
        left = self._left
        while left > 0:
            if bulk < 0:
                bulk = _short_bulk(data, at, size)
                if bulk >= 0:
                    at += 4 if bulk < 10 else 5
                else:
                    self._at = at
                    self._left = left
                    self._bulk = -1
                    bulk = self._bulk_size(data)
                    if bulk < 0:
                        return None
                    at = self._at
            stop: i64 = at + bulk
            if stop + 2 > size:
                self._data = data[at:]  # what is kept now begins with this word
                self._size = size - at
                self._needed = bulk + 2
                self._at = 0
                self._bulk = bulk
                self._left = left
                return None
            words.append(data[at:stop])
            self._held += bulk
            at = stop + 2
            bulk = -1
            left -= 1
        self._at = at
        self._bulk = -1
        self._left = 0
        self._words = []
        self._held = 0
        return words

    def _bulk_size(self, data: bytes) -> i64:
        """Return the length of the next word, and step over its line; -1 if it is cut off."""
        if self._at >= self._size:
            return -1
        first = i64(data[self._at])
        if first != _DOLLAR:
            shown = chr(int(first)) if 32 <= first < 127 else f"\\x{int(first):02x}"
            raise ProtocolError(f"expected '$', got '{shown}'")
        size = self._number(b"too big bulk count string")
        if size == _CUT_OFF:
            return -1
        if size < 0 or size > self.most_bulk:
            raise ProtocolError("invalid bulk length")
        if size > STRANGER_BULK and not self.trusted:
            raise ProtocolError("unauthenticated bulk length")
        return size

    def _number(self, too_big: bytes) -> i64:
        """Return the number of a line that begins with a mark, and step over the line."""
        data = self._data
        size = self._size
        start: i64 = self._at + 1
        at: i64 = start
        value: i64 = 0
        negative = False
        if at < size and i64(data[at]) == 45:
            negative = True
            at += 1
        first_digit: i64 = at
        while at < size and at - first_digit < 12:
            digit: i64 = i64(data[at]) - 48
            if digit < 0 or digit > 9:
                break
            value = value * 10 + digit
            at += 1
        if at >= size or (i64(data[at]) == _CR and at + 1 >= size):
            return _CUT_OFF
        if i64(data[at]) == _CR and at > first_digit:
            leading = i64(data[first_digit]) == 48 and (at - first_digit > 1 or negative)
            self._at = at + 2
            if leading:
                return _NO_NUMBER
            return -value if negative else value
        end: i64 = i64(data.find(b"\r", int(at)))
        if end < 0 and size - start <= MOST_LINE:
            return _CUT_OFF
        if end < 0 or end - start > MOST_LINE:
            raise ProtocolError(too_big.decode())
        return _NO_NUMBER

    def _line(self) -> list[bytes] | None:
        """Return the words of a line that a person typed; None if it has not arrived."""
        data = self._data
        end: i64 = i64(data.find(b"\n", int(self._at)))
        if end < 0:
            if self._size - self._at > MOST_LINE:
                raise ProtocolError("too big inline request")
            return None
        if end - self._at > MOST_LINE:
            raise ProtocolError("too big inline request")
        line = data[self._at : end]
        self._at = end + 1
        if line.endswith(b"\r"):
            line = line[: len(line) - 1]
        try:
            return split_line(line, "request", 0)
        except CorruptionError:
            raise ProtocolError("unbalanced quotes in request") from None


def _short_bulk(data: bytes, at: i64, size: i64) -> i64:
    """Return the length of a word of up to 99 bytes, whose line is `$`, digits, CR, LF; else -1."""
    if at + 4 >= size or i64(data[at]) != _DOLLAR:
        return -1
    tens: i64 = i64(data[at + 1]) - 48
    if tens < 0 or tens > 9:
        return -1
    second: i64 = i64(data[at + 2])
    if second == _CR:
        return tens
    ones: i64 = second - 48
    if tens > 0 and 0 <= ones <= 9 and i64(data[at + 3]) == _CR:
        return 10 * tens + ones
    return -1
