"""Redis's glob patterns, `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, `\\x`, in time linear in the name.

A pattern is cut at its stars into parts that each match a fixed number of bytes. The first part
must be at the start of the name, the last one at its end. Each part between them is taken where it
first fits: a later place leaves less for the parts that follow, and a star takes what is left over.
So no choice is ever revised, as backtracking does, whose steps double with each star.

A part of bytes only is found by `bytes.find`. In others a shift-and automaton finds the first fit:
bit n of its state says that the last n + 1 bytes fit the first n + 1 elements.
"""

from __future__ import annotations

from typing import Final

from streamkeep.format.core.errors import CommandError

MOST_BYTES: Final = 4096  # of a pattern: a part of it costs its bits for each byte of a name
_MOST_STARS: Final = 1000  # of Redis, beyond which a pattern matches nothing
_ANY: Final = (1 << 256) - 1
_STAR, _MARK, _OPEN, _CLOSE, _CARET, _DASH, _BACKSLASH = b"*?[]^-\\"


class Glob:
    """A pattern.

    Raises:
        CommandError: it is too long.
    """

    def __init__(self, pattern: bytes) -> None:
        if len(pattern) > MOST_BYTES:
            raise CommandError(f"a pattern has {len(pattern)} bytes, of {MOST_BYTES} at most")
        self._takes_all = pattern == b"*"
        self._is_empty = not pattern
        parts = [_Part(elements) for elements in _parse(pattern)]
        self._first, self._middle, self._last = parts[0], parts[1:-1], parts[-1]
        self._has_star = len(parts) > 1
        self._least = sum(part.size for part in parts)
        stars = len(parts) - 1 if self._last.size else len(parts) - 2
        self._fails = stars > _MOST_STARS

    def matches(self, name: bytes) -> bool:
        if self._takes_all:
            return True
        if not name:  # as Redis has it: `**` matches no empty name
            return self._is_empty
        size = len(name)
        if size < self._least or self._fails or not self._first.fits(name, 0):
            return False
        if not self._has_star:
            return size == self._least
        end = size - self._last.size
        at = self._first.size
        for part in self._middle:
            at = part.find(name, at, end)
            if at < 0:
                return False
        return self._last.fits(name, end)


class _Part:
    """What is between two stars: for each byte of a name the set of bytes that fit, as 256 bits."""

    def __init__(self, elements: list[int]) -> None:
        self.size = len(elements)
        self._elements = elements
        self._text: bytes | None = None
        if all(one and not one & (one - 1) for one in elements):
            self._text = bytes(one.bit_length() - 1 for one in elements)
        self._fitting: dict[int, int] = {}  # for a byte, the elements that it fits, as bits

    def fits(self, name: bytes, at: int) -> bool:
        """Return whether it matches the bytes from a place on, of which there are enough."""
        if self._text is not None:
            return name.startswith(self._text, at)
        return all(
            one >> byte & 1
            for one, byte in zip(self._elements, name[at : at + self.size], strict=True)
        )

    def find(self, name: bytes, start: int, end: int) -> int:
        """Return where the first fit between two places ends; -1 if there is none."""
        if self._text is not None:
            found = name.find(self._text, start, end)
            return found if found < 0 else found + self.size
        state = 0
        last = 1 << (self.size - 1)
        fitting = self._fitting
        for at in range(start, end):
            byte = name[at]
            if byte not in fitting:
                fitting[byte] = sum(
                    1 << place for place, one in enumerate(self._elements) if one >> byte & 1
                )
            state = (state << 1 | 1) & fitting[byte]
            if state & last:
                return at + 1
        return -1


def _parse(pattern: bytes) -> list[list[int]]:
    """Return the elements of the parts; one part more than there are stars in a row."""
    parts: list[list[int]] = [[]]
    at = 0
    while at < len(pattern):
        byte = pattern[at]
        at += 1
        if byte == _STAR:
            if parts[-1] or len(parts) == 1:
                parts.append([])
        elif byte == _MARK:
            parts[-1].append(_ANY)
        elif byte == _OPEN:
            members, at = _parse_class(pattern, at)
            parts[-1].append(members)
        else:
            if byte == _BACKSLASH and at < len(pattern):
                byte = pattern[at]
                at += 1
            parts[-1].append(1 << byte)
    return parts


def _parse_class(pattern: bytes, at: int) -> tuple[int, int]:
    """Return the set of bytes after a `[`, and where the pattern continues."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members = 0
    while at < len(pattern) and pattern[at] != _CLOSE:
        escaped = pattern[at] == _BACKSLASH and at + 1 < len(pattern)
        at += escaped
        first = pattern[at]
        at += 1
        if not escaped and pattern[at : at + 1] == b"-" and at + 1 < len(pattern):
            members |= _between(first, pattern[at + 1])
            at += 2
        else:
            members |= 1 << first
    return (_ANY & ~members if negated else members), at + 1


def _between(first: int, last: int) -> int:
    """Return the bytes of a range, whose ends Redis compares as signed."""
    low, high = sorted(end - 256 if end > 127 else end for end in (first, last))
    return sum(1 << value % 256 for value in range(low, high + 1))
