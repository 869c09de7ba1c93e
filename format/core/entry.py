"""The public shapes of one entry and of its ID."""

from __future__ import annotations

from typing import Final, Generic, NamedTuple

from typing_extensions import TypeVar  # with defaults: of typing only from Python 3.13 on

from streamkeep.format.core import id_codec

# What a store returns: bytes, or str with decode_responses=True.
Text = TypeVar("Text", bytes, str, default=bytes)
_One = TypeVar("_One")

MAX_U64: Final = (1 << 64) - 1


class StreamId(NamedTuple):
    """An entry ID: milliseconds and a sequence number, both unsigned 64-bit.

    IDs order as tuples do, and print as Redis prints them: `str(StreamId(5, 0)) == "5-0"`.
    """

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def __bytes__(self) -> bytes:
        return id_codec.id_text(self.ms, self.seq)

    def next(self) -> StreamId:
        """Return the ID after this one; 0-0 after the highest."""
        return StreamId(*id_codec.next_id(self.ms, self.seq))

    def previous(self) -> StreamId:
        """Return the ID before this one, which must not be 0-0."""
        return StreamId(*id_codec.previous_id(self.ms, self.seq))

    @classmethod
    def parse(cls, text: str | bytes, *, default_seq: int = 0) -> StreamId:
        """Parse `ms-seq` or `ms` as strictly as Redis does; raise InvalidIdError."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        return cls(*id_codec.parse_id(data, default_seq))


MIN_ID: Final = StreamId(0, 0)
MAX_ID: Final = StreamId(MAX_U64, MAX_U64)


class RepeatedFields(dict[_One, _One]):
    """The fields of an entry in which a field is repeated.

    As a dict it is what redis-py returns, with the last value of each field. Only entries with
    repeated fields have one; the fields of all others are a plain dict.

    Attributes:
        pairs: all fields with their values, in the order of the entry.
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[_One, _One]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by pairs, which the items of the dict do not hold."""
        return RepeatedFields, (self.pairs,)


def fields_of(flat: list[Text]) -> dict[Text, Text]:
    """Return the dict of field, value, field, value, ...; one with all pairs where it needs it."""
    fields = dict(zip(flat[0::2], flat[1::2], strict=True))
    if 2 * len(fields) == len(flat):
        return fields
    return RepeatedFields(list(zip(flat[0::2], flat[1::2], strict=True)))


class Entry(NamedTuple, Generic[Text]):
    """One entry as redis-py returns it: `(id, {field: value})`.

    Of a field that is repeated in the entry, `fields` has the last value, as in redis-py; `pairs`
    has all.
    """

    id: Text
    fields: dict[Text, Text]

    @property
    def pairs(self) -> list[tuple[Text, Text]]:
        """All (field, value) pairs in the order of the entry, repeated fields included.

        XREADGROUP with CLAIM returns tuples that are no `Entry`: their `fields` are a
        `RepeatedFields` with `pairs` where a field is repeated, else a dict with all items.
        """
        fields = self.fields
        return list(fields.pairs if isinstance(fields, RepeatedFields) else fields.items())
