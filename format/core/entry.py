"""The public types of an entry and of its ID."""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple

from typing_extensions import TypeVar  # `typing.TypeVar` has defaults only from Python 3.13 on

from streamkeep.format.core import id_codec

# The text that a store returns: bytes, or str with decode_responses=True.
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
    """The fields of an entry that contains a field more than once.

    As a dict it has the last value of each field, as redis-py returns it. Entries without repeated
    fields have a plain dict instead.

    Attributes:
        pairs: all (field, value) pairs, in the order of the entry.
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[_One, _One]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the pairs: the items of the dict lack the repeated fields."""
        return RepeatedFields, (self.pairs,)


def fields_of(flat: list[Text]) -> dict[Text, Text]:
    """Return the fields of `[field, value, ...]`: a `RepeatedFields` if a field is repeated."""
    fields = dict(zip(flat[0::2], flat[1::2], strict=True))
    if 2 * len(fields) == len(flat):
        return fields
    return RepeatedFields(list(zip(flat[0::2], flat[1::2], strict=True)))


class Entry(NamedTuple, Generic[Text]):
    """One entry as redis-py returns it: `(id, {field: value})`.

    If the entry repeats a field, `fields` has its last value, as in redis-py, and `pairs` has all.
    """

    id: Text
    fields: dict[Text, Text]

    def _repr_html_(self: Any) -> str:
        from streamkeep.format.html import entries_html  # which imports this module

        return entries_html([self], 1)

    @property
    def pairs(self) -> list[tuple[Text, Text]]:
        """All (field, value) pairs in the order of the entry, repeated fields included."""
        return pairs_of(self.fields)

    @property
    def stream_id(self) -> StreamId:
        """The ID as two numbers, `ms` and `seq`, of which `ms` is its time."""
        return StreamId.parse(self.id)


class ClaimedEntry(NamedTuple, Generic[Text]):
    """An entry of XREADGROUP with CLAIM, as redis-py returns it: four parts.

    Attributes:
        former_idle_ms: how long ago it was delivered before, in milliseconds; 0 for a new entry.
        former_delivery_count: how often it was delivered before; 0 for a new entry.
    """

    id: Text
    fields: dict[Text, Text]
    former_idle_ms: int
    former_delivery_count: int

    @property
    def pairs(self) -> list[tuple[Text, Text]]:
        """All (field, value) pairs in the order of the entry, repeated fields included."""
        return pairs_of(self.fields)

    @property
    def stream_id(self) -> StreamId:
        """The ID as two numbers, `ms` and `seq`, of which `ms` is its time."""
        return StreamId.parse(self.id)


class DeliveredEntry(Entry[Text]):
    """An entry that `consume` yields: `(id, fields)`.

    Attributes:
        delivery_count: how often it was delivered, this time included; 1 for a new entry.
    """

    delivery_count: int

    @classmethod
    def of(cls, entry: Entry[Text], delivery_count: int) -> DeliveredEntry[Text]:
        """Return an entry with its count."""
        made: DeliveredEntry[Text] = tuple.__new__(cls, entry)
        made.delivery_count = delivery_count
        return made

    def __repr__(self: Any) -> str:  # mypy knows no subclasses of generic named tuples
        return f"{Entry.__repr__(self)[:-1]}, delivery_count={self.delivery_count})"


def entry_size(entry: Entry[Text]) -> int:
    """Return the bytes of an entry: of its ID, its names and its values."""
    return len(entry.id) + sum(len(field) + len(value) for field, value in entry.pairs)


def pairs_of(fields: dict[_One, _One]) -> list[tuple[_One, _One]]:
    return list(fields.pairs if isinstance(fields, RepeatedFields) else fields.items())
