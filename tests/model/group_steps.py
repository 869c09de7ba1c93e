"""The commands of consumer groups as steps, for the model and a server.

Times are where two machines never agree to the millisecond. Steps that answer with times take
them down to whole units of `COARSE_MS`, and the strategies of the tests only use times that are
whole units apart, so that what is left is equal or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.group_commands import GroupFrom
from model.steps import Argument, Bound, Step, pairwise, read_from_text, wire
from model.streams import ModelStore
from model.values import HIGHEST, ZERO, Id, id_text

COARSE_MS = 1_000_000


def coarse(duration_ms: int) -> int:
    """Return a duration in whole units; -1, which stands for never, as it is."""
    return duration_ms if duration_ms < 0 else duration_ms // COARSE_MS


def last_id_text(last_id: Id | None) -> bytes:
    """Return the ID argument of XGROUP as it is written."""
    return b"$" if last_id is None else id_text(last_id)


class GroupStep(Step):
    """A step of which a server may answer OK."""

    def from_server(self, raw: Any) -> Any:
        return True if raw == b"OK" else raw


@dataclass(frozen=True)
class XGroupCreate(GroupStep):
    """XGROUP CREATE."""

    key: bytes
    group: bytes
    last_id: Id | None
    mkstream: bool = False
    entries_read: int | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xgroup_create(
            self.key,
            self.group,
            self.last_id,
            mkstream=self.mkstream,
            entries_read=self.entries_read,
        )

    def arguments(self) -> list[Argument]:
        words: list[Argument] = [b"XGROUP", b"CREATE", self.key, self.group]
        words.append(last_id_text(self.last_id))
        if self.mkstream:
            words.append(b"MKSTREAM")
        if self.entries_read is not None:
            words += [b"ENTRIESREAD", self.entries_read]
        return words


@dataclass(frozen=True)
class XGroupSetId(GroupStep):
    """XGROUP SETID."""

    key: bytes
    group: bytes
    last_id: Id | None
    entries_read: int | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xgroup_setid(
            self.key, self.group, self.last_id, entries_read=self.entries_read
        )

    def arguments(self) -> list[Argument]:
        words: list[Argument] = [b"XGROUP", b"SETID", self.key, self.group]
        words.append(last_id_text(self.last_id))
        if self.entries_read is not None:
            words += [b"ENTRIESREAD", self.entries_read]
        return words


@dataclass(frozen=True)
class XGroupDestroy(GroupStep):
    """XGROUP DESTROY."""

    key: bytes
    group: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xgroup_destroy(self.key, self.group)

    def arguments(self) -> list[Argument]:
        return [b"XGROUP", b"DESTROY", self.key, self.group]


@dataclass(frozen=True)
class XGroupConsumer(GroupStep):
    """XGROUP CREATECONSUMER, or DELCONSUMER."""

    key: bytes
    group: bytes
    consumer: bytes
    delete: bool = False

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        if self.delete:
            return model.xgroup_delconsumer(self.key, self.group, self.consumer)
        return model.xgroup_createconsumer(self.key, self.group, self.consumer, now_ms=now_ms)

    def arguments(self) -> list[Argument]:
        command = b"DELCONSUMER" if self.delete else b"CREATECONSUMER"
        return [b"XGROUP", command, self.key, self.group, self.consumer]


@dataclass(frozen=True)
class XReadGroup(GroupStep):
    """XREADGROUP without BLOCK."""

    group: bytes
    consumer: bytes
    streams: tuple[tuple[bytes, GroupFrom], ...]
    count: int | None = None
    noack: bool = False

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xreadgroup(
            self.group,
            self.consumer,
            list(self.streams),
            now_ms=now_ms,
            count=self.count,
            noack=self.noack,
        )

    def arguments(self) -> list[Argument]:
        words: list[Argument] = [b"XREADGROUP", b"GROUP", self.group, self.consumer]
        if self.count is not None:
            words += [b"COUNT", self.count]
        if self.noack:
            words.append(b"NOACK")
        keys = [key for key, _ in self.streams]
        return [*words, b"STREAMS", *keys, *(read_from_text(one) for _, one in self.streams)]


@dataclass(frozen=True)
class XAck(GroupStep):
    """XACK."""

    key: bytes
    group: bytes
    ids: tuple[Id, ...]

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xack(self.key, self.group, *self.ids)

    def arguments(self) -> list[Argument]:
        return [b"XACK", self.key, self.group, *map(id_text, self.ids)]


@dataclass(frozen=True)
class XPending(GroupStep):
    """XPENDING without a range."""

    key: bytes
    group: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xpending(self.key, self.group)

    def arguments(self) -> list[Argument]:
        return [b"XPENDING", self.key, self.group]


@dataclass(frozen=True)
class XPendingRange(GroupStep):
    """XPENDING with a range."""

    key: bytes
    group: bytes
    start: Bound
    end: Bound
    count: int
    consumer: bytes | None = None
    idle: int | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xpending_range(
            self.key,
            self.group,
            self.start.id(ZERO),
            self.end.id(HIGHEST),
            self.count,
            self.consumer,
            now_ms=now_ms,
            idle=0 if self.idle is None else self.idle,
            after_start=self.start.open,
            before_end=self.end.open,
        )

    def arguments(self) -> list[Argument]:
        words: list[Argument] = [b"XPENDING", self.key, self.group]
        if self.idle is not None:
            words += [b"IDLE", self.idle]
        words += [self.start.text, self.end.text, self.count]
        return words if self.consumer is None else [*words, self.consumer]

    def from_server(self, raw: Any) -> Any:
        return [[entry_id, name, coarse(idle), count] for entry_id, name, idle, count in raw]

    def wire_from_model(self, value: Any) -> Any:
        return self.from_server(wire(value))


@dataclass(frozen=True)
class XClaim(GroupStep):
    """XCLAIM."""

    key: bytes
    group: bytes
    consumer: bytes
    min_idle: int
    ids: tuple[Id, ...]
    idle: int | None = None
    time: int | None = None
    retrycount: int | None = None
    force: bool = False
    justid: bool = False
    lastid: Id | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xclaim(
            self.key,
            self.group,
            self.consumer,
            self.min_idle,
            list(self.ids),
            now_ms=now_ms,
            idle=self.idle,
            time=self.time,
            retrycount=self.retrycount,
            force=self.force,
            justid=self.justid,
            lastid=self.lastid,
        )

    def arguments(self) -> list[Argument]:
        words: list[Argument] = [b"XCLAIM", self.key, self.group, self.consumer, self.min_idle]
        words += map(id_text, self.ids)
        for name, value in (
            (b"IDLE", self.idle),
            (b"TIME", self.time),
            (b"RETRYCOUNT", self.retrycount),
        ):
            if value is not None:
                words += [name, value]
        if self.force:
            words.append(b"FORCE")
        if self.justid:
            words.append(b"JUSTID")
        if self.lastid is not None:
            words += [b"LASTID", id_text(self.lastid)]
        return words


@dataclass(frozen=True)
class XAutoClaim(GroupStep):
    """XAUTOCLAIM."""

    key: bytes
    group: bytes
    consumer: bytes
    min_idle: int
    start: Id
    count: int | None = None
    justid: bool = False

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xautoclaim(
            self.key,
            self.group,
            self.consumer,
            self.min_idle,
            self.start,
            now_ms=now_ms,
            count=100 if self.count is None else self.count,
            justid=self.justid,
        )

    def arguments(self) -> list[Argument]:
        words: list[Argument] = [b"XAUTOCLAIM", self.key, self.group, self.consumer, self.min_idle]
        words.append(id_text(self.start))
        if self.count is not None:
            words += [b"COUNT", self.count]
        return [*words, b"JUSTID"] if self.justid else words


@dataclass(frozen=True)
class XInfoGroups(GroupStep):
    """XINFO GROUPS."""

    key: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xinfo_groups(self.key)

    def arguments(self) -> list[Argument]:
        return [b"XINFO", b"GROUPS", self.key]

    def from_server(self, raw: Any) -> Any:
        return [pairwise(group) for group in raw]


@dataclass(frozen=True)
class XInfoConsumers(GroupStep):
    """XINFO CONSUMERS: names and pending counts; times are those of other versions."""

    key: bytes
    group: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xinfo_consumers(self.key, self.group, now_ms=now_ms)

    def arguments(self) -> list[Argument]:
        return [b"XINFO", b"CONSUMERS", self.key, self.group]

    def from_server(self, raw: Any) -> Any:
        return [pairwise(consumer) for consumer in raw]
