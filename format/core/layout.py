"""Byte tables: one definition of each fixed layout, shared by the codec, the docs and `dump`.

A `Layout` is a list of fields. The encoder and the decoder use its `struct`,
`docs/reference/format.md` prints its `table`, and `describe` annotates its fields. Numbers are
big-endian, without padding.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8, "q": 8}
_TYPES = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "q": "i64"}


class Field(NamedTuple):
    """One field: its name, its `struct` code and its meaning."""

    name: str
    code: str
    meaning: str

    @property
    def size(self) -> int:
        return _SIZES[self.code] if self.code in _SIZES else int(self.code[:-1])

    @property
    def type(self) -> str:
        return _TYPES.get(self.code, f"{self.size} bytes")


class Layout:
    """A named sequence of fields of fixed size."""

    def __init__(self, name: str, fields: tuple[Field, ...]) -> None:
        self.name = name
        self.fields = fields
        self.struct = struct.Struct(">" + "".join(field.code for field in fields))
        self.size = self.struct.size

    def offset(self, name: str) -> int:
        at = 0
        for field in self.fields:
            if field.name == name:
                return at
            at += field.size
        raise KeyError(name)

    def table(self) -> str:
        lines = ["| offset | size | field | type | meaning |", "|---|---|---|---|---|"]
        at = 0
        for field in self.fields:
            row = (str(at), str(field.size), f"`{field.name}`", field.type, field.meaning)
            lines.append("| " + " | ".join(row) + " |")
            at += field.size
        return "\n".join(lines)
