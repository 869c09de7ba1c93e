"""Byte tables: one definition of each fixed layout, shared by the codec, the docs and `dump`.

A `Layout` is a list of fields, mostly those of the tuple that a decoder returns: `Layout.of` takes
them from its annotations. The encoder and the decoder use its `struct`,
`docs/reference/format.md` prints its `table`, and `describe` annotates its fields. Numbers are
big-endian, without padding.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

from streamkeep.format.core.errors import CorruptionError

_SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8, "q": 8}
_TYPES = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "q": "i64"}


class Field(NamedTuple):
    """One field: its name, its `struct` code and its meaning."""

    name: str
    code: str
    meaning: str = ""

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

    @classmethod
    def of(
        cls, name: str, row: type, before: tuple[Field, ...] = (), after: tuple[Field, ...] = ()
    ) -> Layout:
        """Return the layout of a class whose fields are annotated with their code and meaning.

        Args:
            before, after: fields that the class does not have.
        """
        hints = get_type_hints(row, include_extras=True).items()
        fields = [
            Field(one, *hint.__metadata__) for one, hint in hints if get_origin(hint) is Annotated
        ]
        return cls(name, (*before, *fields, *after))

    def unpack(self, body: bytes, where: str, *, more: bool = False) -> tuple[Any, ...]:
        """Return the values of the fields; raise CorruptionError for a body of another size.

        Args:
            more: other bytes may follow.
        """
        if len(body) < self.size or (len(body) != self.size and not more):
            expected = f"{'at least ' * more}{self.size}"
            raise CorruptionError(where, f"{self.name} of {len(body)} bytes, expected {expected}")
        return self.struct.unpack_from(body)

    def offset(self, name: str) -> int:
        at = 0
        for field in self.fields:
            if field.name == name:
                return at
            at += field.size
        raise KeyError(name)

    def table(self) -> str:
        rows = [f"| `{field.name}` | {field.type} | {field.meaning} |" for field in self.fields]
        return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
