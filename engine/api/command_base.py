"""How commands run, and what their arguments may be: the base of the public classes.

A method checks its arguments and makes a `Command` of them. Each public class has one method,
`_run`, that runs it: `Store` in a transaction of its own, `Transaction` in the one that is open,
`Snapshot` in one that only reads; `Pipeline` queues it, and asyncio's classes await it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar, cast, overload

from streamkeep.engine.commands.arguments import range_end, range_start, to_bytes, to_id, to_id_text
from streamkeep.engine.store.command import Command, Free, Read, ReadHistory, Remove, Write
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.entry import ClaimedEntry, Entry, RepeatedFields, StreamId, Text
from streamkeep.format.core.errors import ArgumentError, InvalidIdError, StoreClosedError
from streamkeep.format.core.times import EXPECTED, Bound, time_bound
from streamkeep.format.core.values import as_given
from streamkeep.format.html import Facts, Listed
from streamkeep.format.node.node import ENTRY, TEXT

if TYPE_CHECKING:
    from typing import TypeVarTuple

    from streamkeep.engine.txn.read_txn import ReadTxn

    Args = TypeVarTuple("Args")

Key = bytes | str | memoryview | int | float
Value = bytes | str | int | float | memoryview
Fields = Mapping[Any, Value]
Pair = tuple[Value, Value]
Id = int | bytes | str | StreamId
RangeId = Id | datetime | date  # what bounds a range; texts may be times, too
Streams = Mapping[Any, Id] | Sequence[tuple[Key, Id]]  # of XREADGROUP
ReadStreams = Mapping[Any, RangeId] | Sequence[tuple[Key, RangeId]]  # of XREAD
RefPolicy = Literal["KEEPREF", "DELREF", "ACKED"]

# Parts of replies. In truth they are lists, as in redis-py, but only of a tuple can a type say what
# each part is. `Named` are a stream and its entries; `Claimed` ends with the IDs that are gone.
Named = tuple[Text, list[Entry[Text]]]
NamedClaimed = tuple[Text, list[ClaimedEntry[Text]]]
Claimed = tuple[Text, list[Entry[Text]], list[Text]]
ClaimedIds = tuple[Text, list[Text], list[Text]]

# Fields, and for each the value that an entry must have, or several of which it must have one.
Condition = Mapping[Any, Value | Collection[Value]]

Shape = Callable[[Any], Any]  # makes the result of a reply
Reply = TypeVar("Reply")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=Txn, covariant=True)


class Make(Protocol[Kind]):
    """Makes a command of a function, its arguments after the transaction, and a shape."""

    @overload
    def __call__(
        self, run: Callable[[Kind, *Args], Result], args: tuple[*Args], /
    ) -> Command[Result]: ...

    @overload
    def __call__(
        self,
        run: Callable[[Kind, *Args], Reply],
        args: tuple[*Args],
        shape: Callable[[Reply], Result] | None,
        /,
    ) -> Command[Result]: ...


# The classes themselves: their types are here since compiled classes have no overloads.
read: Final = cast("Make[Txn]", Read)
read_history: Final = cast("Make[Txn]", ReadHistory)
write: Final = cast("Make[WriteTxn]", Write)
free: Final = cast("Make[WriteTxn]", Free)
remove: Final = cast("Make[WriteTxn]", Remove)


class CommandBase(Generic[Text]):
    """The base of all classes that have commands as methods.

    `Text` is bytes, or str with decode_responses=True.
    """

    _store: Any  # the store itself, in the classes that are views of one
    _decode = False  # whether results are str instead of bytes
    # Turns the bytes of a result into text; one function under three types.
    _text: Shape | None = None
    _one_text: Callable[[bytes], Text] | None = None
    _id_text: Callable[[bytes | None], Text | None] | None = None

    # Whether entries become text only after the command. In a shared transaction, one value that is
    # not UTF-8 must not undo the other commands.
    _late_text = False

    def _as_text(self, data: bytes) -> Text:
        """Return bytes as `Text`, where no shape of a command does so."""
        return cast(Text, data.decode() if self._decode else data)

    def _set_decode(self, decode: bool) -> None:
        self._decode = decode
        self._text = self._one_text = self._id_text = to_text if decode else None

    def _run(self, command: Command[Result]) -> Result:
        """Run a command and return its result.

        Only stores let a command wait: nothing new can appear inside a transaction or snapshot.
        """
        raise NotImplementedError

    def _lease(self) -> int:
        """Return the lease under which entries are delivered; 0 for none.

        The first call makes the lease of this process.
        """
        return int(self._store._lease())

    def _now_ms(self) -> int:
        """Return the time of the store's clock, from which ages are counted."""
        return int(self._store._now_ms())

    def _reading(self) -> AbstractContextManager[ReadTxn]:
        """Return the transaction from which an iterator reads in its `with` block."""
        return cast("AbstractContextManager[ReadTxn]", self._store._reading())

    def __dir__(self) -> list[str]:
        """Return the public names, which notebooks and shells complete."""
        names = object.__dir__(self)
        return [name for name in names if not name.startswith("_") or name.startswith("__")]

    @property
    def _shape(self) -> int:
        """The shape in which commands return entries."""
        return int(TEXT if self._decode and not self._late_text else ENTRY)

    @property
    def _entry_text(self) -> Shape | None:
        """Turns entries of that shape into text, if they have to become text later."""
        return to_text if self._decode and self._late_text else None


def listed(shape: Shape | None) -> Shape:
    """Wrap a shape, so that notebooks show its list as a table."""
    return Listed if shape is None else lambda reply: Listed(shape(reply))


def facts(shape: Shape | None) -> Shape:
    """Wrap a shape, so that notebooks show its dict as a table."""
    return Facts if shape is None else lambda reply: Facts(shape(reply))


# --- the bounds of ranges -----------------------------------------------------------------------

Now = Callable[[], int]  # returns the present in Unix milliseconds


def start_bound(parameter: str, value: object, now: Now) -> tuple[int, int]:
    """Return the first ID of a range: what Redis takes, or a time."""
    return _bound(range_start, parameter, value, "from", now)


def end_bound(parameter: str, value: object, now: Now) -> tuple[int, int]:
    """Return the last ID of a range: what Redis takes, or a time."""
    return _bound(range_end, parameter, value, "to", now)


def minid_bound(value: object, now: Now) -> tuple[int, int]:
    """Return the ID of MINID: what Redis takes, or a time."""
    return _bound(to_id, "minid", value, "from", now)


def _bound(
    parse: Callable[[object], tuple[int, int]], parameter: str, value: object, kind: Bound, now: Now
) -> tuple[int, int]:
    try:
        return parse(value)  # what Redis reads as an ID stays one: it reads no text of a time so
    except (InvalidIdError, ArgumentError) as error:
        return parse(_bound_of(error, parameter, value, kind, now))


def after_text(parameter: str, value: object, now: Now) -> bytes:
    """Return the text of the ID that a reader begins above: what Redis takes, or a time."""
    try:
        text = to_id_text(value)
    except ArgumentError as error:
        return _bound_of(error, parameter, value, "after", now)
    if text[4:5] != b"-" and text[:1] != b"-":
        return text
    try:
        return time_bound(text, "after", now) or text
    except ValueError as error:
        raise ArgumentError(f"{parameter} is {as_given(value)}: {error}") from None


def _bound_of(
    error: InvalidIdError | ArgumentError, parameter: str, value: object, bound: Bound, now: Now
) -> bytes:
    """Return the text of the ID for a time; raise the error of the ID for anything else."""
    try:
        found = time_bound(value, bound, now)
    except ValueError as problem:
        raise ArgumentError(f"{parameter} is {as_given(value)}: {problem}") from None
    if found is None:
        error.add_note(f"{parameter} is {as_given(value)}; it may also be {EXPECTED}")
        raise error
    return found


def to_condition(where: object) -> dict[bytes, list[bytes]]:
    """Return a condition in the form of `Where`; raise ArgumentError if it is not one."""
    if not isinstance(where, Mapping) or not where:
        raise ArgumentError(f"where must be a non-empty dict of fields, not {as_given(where)}")
    found = {}
    for field, given in where.items():
        values = list(given) if isinstance(given, (list, tuple, set, frozenset)) else [given]
        if not values:
            raise ArgumentError(f"where has no value for the field {as_given(field)}")
        what = f"the value of field {as_given(field)} in where"
        found[to_bytes(field, "a field of where")] = [to_bytes(value, what) for value in values]
    return found


# --- streams and texts --------------------------------------------------------------------------


def named_streams(
    command: str, streams: Streams | ReadStreams, now: Now | None = None
) -> list[tuple[bytes, bytes]]:
    """Return (name, text of the ID) of the streams argument of XREAD and XREADGROUP.

    A list of pairs may name a stream several times, as Redis's arguments may.

    Args:
        now: given if an ID may also be a time.
    """
    if not streams or not isinstance(streams, (dict, Mapping, list, tuple)):
        raise ArgumentError(
            f"{command} streams must be a non empty dict, or a list of (name, ID) pairs, "
            f"not {as_given(streams)}"
        )
    if isinstance(streams, (list, tuple)):
        for pair in streams:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                problem = f"{command} streams must be (name, ID) pairs, not {as_given(pair)}"
                raise ArgumentError(problem)
    pairs = streams if isinstance(streams, (list, tuple)) else streams.items()
    if now is not None:
        return [
            (to_bytes(name, "the name of a stream"), after_text(f"the ID of {name!r}", one, now))
            for name, one in pairs
        ]
    return [(to_bytes(name, "the name of a stream"), to_id_text(one)) for name, one in pairs]


def group_names(name: Key, groupname: Key) -> tuple[bytes, bytes]:
    """Return the names of a stream and a group as bytes."""
    return to_bytes(name, "name"), to_bytes(groupname, "groupname")


def consumer_names(name: Key, groupname: Key, consumername: Key) -> tuple[bytes, bytes, bytes]:
    """Return the names of a stream, a group and a consumer as bytes."""
    return (*group_names(name, groupname), to_bytes(consumername, "consumername"))


def id_texts(ids: Iterable[Id]) -> list[bytes]:
    """Return the texts of IDs."""
    return [to_id_text(one) for one in ids]


def to_text(value: object) -> Any:
    """Return a result with all bytes in it decoded from UTF-8, as redis-py does."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (Entry, ClaimedEntry)):
        return type(value)(*map(to_text, value))
    if isinstance(value, list):
        return [to_text(item) for item in value]
    if isinstance(value, tuple):
        return tuple(to_text(item) for item in value)
    if isinstance(value, RepeatedFields):
        return RepeatedFields(to_text(value.pairs))
    if isinstance(value, dict):
        return {to_text(key): to_text(item) for key, item in value.items()}
    return value


def check_lives(txn: ReadTxn) -> None:
    """Raise if what an iterator reads from has ended, or belongs to the parent of this process.

    A forked child must not read on: the slot that keeps the pages is the parent's.
    """
    if not txn.open:
        raise StoreClosedError("the transaction or snapshot of the iterator has ended")
    txn.context.check_open()
