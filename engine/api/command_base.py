"""How commands run, and what their arguments may be: the base of the public classes.

A command is a function of a transaction. `CommandBase` says nothing about which transaction:
`Store` gives each command its own, `Transaction` the one that is open, `Snapshot` one that only
reads, and `Pipeline` queues them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal

from streamkeep.engine.commands.arguments import as_given, to_bytes, to_id_text
from streamkeep.engine.commands.history import Unreadable
from streamkeep.format.core.entry import Entry, RepeatedFields, StreamId, Text
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.node.node import ENTRY, TEXT

if TYPE_CHECKING:
    from streamkeep.engine.blocking.calls import BlockingCall
    from streamkeep.engine.txn.txn import ReadTxn

Key = bytes | str | memoryview | int | float
Value = bytes | str | int | float | memoryview
Fields = Mapping[Any, Value]
Pair = tuple[Value, Value]
Id = int | bytes | str | StreamId
Streams = Mapping[Any, Id] | Sequence[tuple[Key, Id]]  # of XREAD and XREADGROUP
RefPolicy = Literal["KEEPREF", "DELREF", "ACKED"]


class CommandBase(Generic[Text]):
    """What all command methods are written in terms of.

    `Text` is bytes, or str with decode_responses=True.
    """

    _decode = False  # whether results are str instead of bytes
    _text: Callable[[Any], Any] | None = None  # what turns bytes of a result into text then

    # Whether entries become text only after the command: where commands share a transaction, one
    # value that is not UTF-8 must not undo the others.
    _late_text = False

    def _set_decode(self, decode: bool) -> None:
        self._decode = decode
        self._text = to_text if decode else None

    # --- how a command runs -----------------------------------------------------------------

    def _read(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        """Run `command(txn, *args)` on a snapshot; return `convert` of its result."""
        raise NotImplementedError

    def _write(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        """Run `command(txn, *args)` in a write transaction; return `convert` of its result."""
        raise NotImplementedError

    def _free(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        """As `_write`, for a command that makes room and so may use the store's reserve."""
        return self._write(convert, command, *args)

    def _block(
        self,
        convert: Callable[[Any], Any] | None,
        call: BlockingCall,
        block_ms: int,
    ) -> Any:
        """Run a command that may wait until it has something to return.

        It does not, unless a subclass says otherwise: inside a transaction nothing can come.
        """
        return (self._write if call.writes else self._read)(convert, call.run)

    def _read_history(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        """As `_read`, for a command that also reads segments.

        Where no newer snapshot can be taken, a file that was removed since is an error.
        """
        try:
            return self._read(convert, command, *args)
        except Unreadable as gone:
            raise gone.error from None

    def _begin_scan(self) -> tuple[ReadTxn, bool]:
        """Return a read transaction for an iterator, and whether the iterator must close it."""
        raise NotImplementedError

    @property
    def _shape(self) -> int:
        """The shape in which commands return entries."""
        return int(TEXT if self._decode and not self._late_text else ENTRY)

    @property
    def _entry_text(self) -> Callable[[Any], Any] | None:
        """What turns entries of that shape into text, where they are to be and are not yet."""
        return to_text if self._decode and self._late_text else None


def named_streams(command: str, streams: Streams) -> list[tuple[bytes, bytes]]:
    """Return (name, text of the ID) of the streams argument of XREAD and XREADGROUP.

    A list of pairs may name a stream several times, as Redis's arguments may.
    """
    if not streams or not isinstance(streams, (dict, Mapping, list, tuple)):
        raise ArgumentError(
            f"{command} streams must be a non empty dict, or a list of (name, ID) pairs, "
            f"not {as_given(streams)}"
        )
    if isinstance(streams, (list, tuple)):
        for pair in streams:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                problem = f"{command} streams must be (name, ID) pairs; {as_given(pair)} is none"
                raise ArgumentError(problem)
    pairs = streams if isinstance(streams, (list, tuple)) else streams.items()
    return [(to_bytes(name, "the name of a stream"), to_id_text(one)) for name, one in pairs]


def to_text(value: Any) -> Any:
    """Return a result with every bytes in it decoded from UTF-8, as redis-py does."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Entry):
        return Entry(to_text(value.id), to_text(value.fields))
    if isinstance(value, list):
        return [to_text(item) for item in value]
    if isinstance(value, tuple):
        return tuple(to_text(item) for item in value)
    if isinstance(value, RepeatedFields):
        return RepeatedFields(to_text(value.pairs))
    if isinstance(value, dict):
        return {to_text(key): to_text(item) for key, item in value.items()}
    return value
