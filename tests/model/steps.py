"""Commands as values, so that one test can run the same command in several places.

A step knows how to run on the model, and how to be called on anything with redis-py's methods. The
model's answer is turned into the shape of theirs, `friendly`: IDs as text, entries as (id, {field:
value}). The two must then be equal.

Where a command fails, the answer is `Failed` with the whole error line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from model.streams import ModelStore, NewId, ReadFrom
from model.values import HIGHEST, ZERO, Id, ModelError, Pairs, id_text


@dataclass(frozen=True)
class Failed:
    """The answer of a command that broke a rule."""

    text: str


def attempt(call: Callable[[], Any]) -> Any:
    """Return what a call on the model answers."""
    try:
        return call()
    except ModelError as error:
        return Failed(error.text)


def friendly(value: Any) -> Any:
    """Return an answer of the model as redis-py would."""
    if is_id(value):
        return id_text(value)
    if _is_pairs(value):
        return dict(value)
    if isinstance(value, tuple) and len(value) == 2 and is_id(value[0]):
        return friendly(value[0]), friendly(value[1])
    return _inside(value, friendly)


def _inside(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: convert(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [convert(item) for item in value]
    return value


def is_id(value: Any) -> bool:
    """Say whether an answer of the model is an ID: nothing else is a tuple of two numbers."""
    return isinstance(value, tuple) and len(value) == 2 and all(type(half) is int for half in value)


def _is_pairs(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(
            isinstance(pair, tuple)
            and len(pair) == 2
            and isinstance(pair[0], bytes)
            and isinstance(pair[1], bytes)
            for pair in value
        )
    )


@dataclass(frozen=True)
class Step:
    """One command; its fields are its arguments, in order and by the names of the model's method.

    Fields with a default are options, which both take by name. `command` is the method's name, of
    the model and of redis-py. Subclasses override what does not fit to that.
    """

    command: ClassVar[str]
    spread: ClassVar[str] = ""  # a field whose values are arguments of their own
    timed: ClassVar[bool] = False  # the model has to know the time
    names: ClassVar[dict[str, str]] = {}  # of redis-py's options, where they are others

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        """Run on the model; return its answer."""
        arguments, options = self._arguments(lambda value: value)
        if self.timed:
            options["now_ms"] = now_ms
        return getattr(model, self.command)(*arguments, **options)

    def on_store(self, commands: Any) -> Any:
        """Run on anything with redis-py's methods; return its answer, or the queue of the call."""
        arguments, options = self._arguments(as_written)
        options = {self.names.get(name, name): value for name, value in options.items()}
        return getattr(commands, self.command)(*arguments, **options)

    def _arguments(self, convert: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        arguments: list[Any] = []
        options: dict[str, Any] = {}
        for one in fields(self):
            value = convert(getattr(self, one.name))
            if one.name == self.spread:
                arguments += value
            elif one.default is MISSING:
                arguments.append(value)
            else:
                options[one.name] = value
        return arguments, options

    def from_store(self, answer: Any) -> Any:
        """Return the answer of `on_store` without what may differ."""
        return answer

    def from_model(self, value: Any) -> Any:
        """Return the model's answer as `on_store` must give it."""
        return friendly(value)


def as_written(value: Any) -> Any:
    """Return an argument with its IDs as text."""
    if is_id(value):
        return id_text(value)
    return [as_written(one) for one in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Trim:
    """The trimming options of XADD and XTRIM."""

    maxlen: int | None = None
    minid: Id | None = None
    approximate: bool = False
    limit: int | None = None
    policy: str = "KEEPREF"

    def options(self) -> dict[str, Any]:
        """Return the options as redis-py's methods take them."""
        return {
            "maxlen": self.maxlen,
            "minid": None if self.minid is None else id_text(self.minid),
            "approximate": self.approximate,
            "limit": self.limit,
            "ref_policy": self.policy,
        }


@dataclass(frozen=True)
class XAdd(Step):
    """XADD; fields may repeat where there is nothing to trim.

    With a producer it is idempotent: IDMP, or IDMPAUTO where there is no `iid`.
    """

    key: bytes
    pairs: Pairs
    new_id: NewId = None
    trim: Trim | None = None
    nomkstream: bool = False
    producer: bytes | None = None
    iid: bytes | None = None

    @property
    def id_text(self) -> bytes:
        """The ID as it is written."""
        if self.new_id is None:
            return b"*"
        ms, seq = self.new_id
        return b"%d-*" % ms if seq is None else id_text((ms, seq))

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        options = {} if self.trim is None else vars(self.trim)
        return model.xadd(
            self.key,
            self.pairs,
            self.new_id,
            now_ms=now_ms,
            nomkstream=self.nomkstream,
            producer=self.producer,
            iid=self.iid,
            **options,
        )

    def on_store(self, commands: Any) -> Any:
        options = {} if self.trim is None else self.trim.options()
        if self.producer is not None:
            message = self.producer if self.iid is None else (self.producer, self.iid)
            options["idmpauto" if self.iid is None else "idmp"] = message
        fields = dict(self.pairs)
        given = fields if len(fields) == len(self.pairs) else self.pairs
        return commands.xadd(
            self.key, given, id=self.id_text, nomkstream=self.nomkstream, **options
        )


@dataclass(frozen=True)
class XTrim(Step):
    """XTRIM."""

    key: bytes
    trim: Trim

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xtrim(self.key, **vars(self.trim))

    def on_store(self, commands: Any) -> Any:
        return commands.xtrim(self.key, **self.trim.options())


@dataclass(frozen=True)
class XDel(Step):
    command, spread = "xdel", "ids"
    key: bytes
    ids: tuple[Id, ...]


@dataclass(frozen=True)
class XLen(Step):
    command = "xlen"
    key: bytes


@dataclass(frozen=True)
class Bound:
    """One end of a range: `-`, `+`, `ms`, `ms-seq`, or one of the last two after `(`."""

    ms: int | None
    seq: int | None = None
    open: bool = False
    word: bytes = b""  # `-` or `+`, where ms is None

    @property
    def text(self) -> bytes:
        """The end as it is written."""
        if self.ms is None:
            return self.word
        number = b"%d" % self.ms if self.seq is None else id_text((self.ms, self.seq))
        return b"(" + number if self.open else number

    def id(self, default: Id) -> Id:
        """Return the ID that is meant; what is not given comes from `default`."""
        if self.ms is None:
            return ZERO if self.word == b"-" else HIGHEST
        return self.ms, default[1] if self.seq is None else self.seq


@dataclass(frozen=True)
class XRange(Step):
    """XRANGE, or XREVRANGE."""

    key: bytes
    start: Bound
    end: Bound
    count: int | None = None
    reverse: bool = False

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        start, end = self.start.id(ZERO), self.end.id(HIGHEST)
        ends = {"after_start": self.start.open, "before_end": self.end.open}
        if self.reverse:
            return model.xrevrange(self.key, end, start, self.count, **ends)
        return model.xrange(self.key, start, end, self.count, **ends)

    def on_store(self, commands: Any) -> Any:
        if self.reverse:
            return commands.xrevrange(self.key, self.end.text, self.start.text, self.count)
        return commands.xrange(self.key, self.start.text, self.end.text, self.count)


@dataclass(frozen=True)
class XRead(Step):
    """XREAD without BLOCK."""

    streams: tuple[tuple[bytes, ReadFrom], ...]
    count: int | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xread(list(self.streams), count=self.count)

    def on_store(self, commands: Any) -> Any:
        streams = {key: read_from_text(position) for key, position in self.streams}
        return commands.xread(streams, count=self.count)

    def from_model(self, value: Any) -> Any:
        return friendly(value or [])


def read_from_text(position: ReadFrom) -> bytes:
    """Return a position of XREAD or XREADGROUP as it is written."""
    return position.encode() if isinstance(position, str) else id_text(position)


@dataclass(frozen=True)
class XSetId(Step):
    command = "xsetid"
    key: bytes
    last_id: Id
    entries_added: int | None = None
    max_deleted_id: Id | None = None


@dataclass(frozen=True)
class XInfoStream(Step):
    command, timed = "xinfo_stream", True
    key: bytes

    def from_store(self, answer: Any) -> Any:
        assert answer["radix-tree-nodes"] > 0  # any positive number is right
        return {name: value for name, value in answer.items() if name != "radix-tree-nodes"}


@dataclass(frozen=True)
class XInfoFull(XInfoStream):
    """XINFO STREAM FULL."""

    count: int | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xinfo_stream_full(self.key, 10 if self.count is None else self.count, now_ms)

    def on_store(self, commands: Any) -> Any:
        count = 10 if self.count is None else self.count
        return commands.xinfo_stream(self.key, full=True, count=count)

    def from_model(self, value: Any) -> Any:
        answer = super().from_model(value)
        answer["entries"] = dict(answer["entries"])
        return answer


@dataclass(frozen=True)
class Delete(Step):
    command, spread = "delete", "keys"
    keys: tuple[bytes, ...]


@dataclass(frozen=True)
class Exists(Step):
    command, spread = "exists", "keys"
    keys: tuple[bytes, ...]


@dataclass(frozen=True)
class Rename(Step):
    command = "rename"
    source: bytes
    target: bytes


@dataclass(frozen=True)
class RenameNx(Rename):
    command = "renamenx"


@dataclass(frozen=True)
class Keys(Step):
    command = "keys"


@dataclass(frozen=True)
class Type(Step):
    command = "type"
    key: bytes
