"""The public shapes of one entry and of its ID."""

from __future__ import annotations

from typing import Final, Generic, NamedTuple

from typing_extensions import TypeVar  # with defaults: of typing only from Python 3.13 on

from streamkeep.format import id_codec

# What a store returns: bytes, or str with decode_responses=True.
Text = TypeVar("Text", bytes, str, default=bytes)

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


class Entry(NamedTuple, Generic[Text]):
    """One entry as redis-py returns it: `(id, {field: value})`.

    Of a field that stands several times in the entry the last value wins, as in redis-py; `scan`
    gives every pair in order.
    """

    id: Text
    fields: dict[Text, Text]
