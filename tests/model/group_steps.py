"""Commands on groups, on what is pending, and on what makes appending idempotent, as steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.group_commands import GroupFrom
from model.steps import Bound, Step, as_written, friendly, read_from_text
from model.streams import ModelStore
from model.values import HIGHEST, ZERO, Id, id_text


class GroupStep(Step):
    """A step that may be answered with OK."""

    def from_store(self, answer: Any) -> Any:
        return True if answer in (b"OK", "OK") else answer


@dataclass(frozen=True)
class XGroupCreate(GroupStep):
    command = "xgroup_create"
    key: bytes
    group: bytes
    last_id: Id | None
    mkstream: bool = False
    entries_read: int | None = None

    def on_store(self, commands: Any) -> Any:
        (*where, last_id), options = self._arguments(as_written)
        last_id = b"$" if last_id is None else last_id
        return getattr(commands, self.command)(*where, last_id, **options)


@dataclass(frozen=True)
class XGroupSetId(GroupStep):
    command = "xgroup_setid"
    key: bytes
    group: bytes
    last_id: Id | None
    entries_read: int | None = None

    on_store = XGroupCreate.on_store


@dataclass(frozen=True)
class XGroupDestroy(GroupStep):
    command = "xgroup_destroy"
    key: bytes
    group: bytes


@dataclass(frozen=True)
class XGroupCreateConsumer(GroupStep):
    command, timed = "xgroup_createconsumer", True
    key: bytes
    group: bytes
    consumer: bytes


@dataclass(frozen=True)
class XGroupDelConsumer(GroupStep):
    command = "xgroup_delconsumer"
    key: bytes
    group: bytes
    consumer: bytes


@dataclass(frozen=True)
class XReadGroup(GroupStep):
    """XREADGROUP without BLOCK."""

    command, timed = "xreadgroup", True
    group: bytes
    consumer: bytes
    streams: tuple[tuple[bytes, GroupFrom], ...]
    count: int | None = None
    noack: bool = False
    claim: int | None = None
    maxcount: int | None = None
    maxsize: int | None = None

    def on_store(self, commands: Any) -> Any:
        # redis-py refuses a COUNT below 1, which is for everything, as none is.
        count = None if self.count is not None and self.count < 1 else self.count
        return commands.xreadgroup(
            self.group,
            self.consumer,
            {key: read_from_text(position) for key, position in self.streams},
            count=count,
            noack=self.noack,
            claim_min_idle_time=self.claim,
            max_count=self.maxcount,
            max_size=self.maxsize,
        )

    def from_model(self, value: Any) -> Any:
        return [
            [key, [(id_text(one), dict(pairs or ()), *more) for one, pairs, *more in entries]]
            for key, entries in value or []
        ]


@dataclass(frozen=True)
class XPending(GroupStep):
    """XPENDING without a range."""

    command = "xpending"
    key: bytes
    group: bytes

    def from_model(self, value: Any) -> Any:
        total, lowest, highest, consumers = value
        return {
            "pending": total,
            "min": lowest and id_text(lowest),
            "max": highest and id_text(highest),
            "consumers": [{"name": name, "pending": int(own)} for name, own in consumers or ()],
        }


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

    def on_store(self, commands: Any) -> Any:
        # redis-py refuses a count below 0, which is as good as 0.
        start, end, count = self.start.text, self.end.text, max(0, self.count)
        return commands.xpending_range(
            self.key, self.group, start, end, count, self.consumer, self.idle
        )

    def from_model(self, value: Any) -> Any:
        return [
            {
                "message_id": id_text(entry_id),
                "consumer": consumer,
                "time_since_delivered": idle,
                "times_delivered": count,
            }
            for entry_id, consumer, idle, count in value
        ]


@dataclass(frozen=True)
class XInfoGroups(GroupStep):
    command = "xinfo_groups"
    key: bytes


@dataclass(frozen=True)
class XInfoConsumers(GroupStep):
    command, timed = "xinfo_consumers", True
    key: bytes
    group: bytes


@dataclass(frozen=True)
class XAck(GroupStep):
    command, spread = "xack", "ids"
    key: bytes
    group: bytes
    ids: tuple[Id, ...]


@dataclass(frozen=True)
class XAckDel(GroupStep):
    command, spread, names = "xackdel", "ids", {"policy": "ref_policy"}
    key: bytes
    group: bytes
    ids: tuple[Id, ...]
    policy: str = "KEEPREF"


@dataclass(frozen=True)
class XDelEx(GroupStep):
    command, spread, names = "xdelex", "ids", {"policy": "ref_policy"}
    key: bytes
    ids: tuple[Id, ...]
    policy: str = "KEEPREF"


@dataclass(frozen=True)
class XNack(GroupStep):
    command, spread = "xnack", "ids"
    key: bytes
    group: bytes
    mode: str
    ids: tuple[Id, ...]
    retrycount: int | None = None
    force: bool = False


@dataclass(frozen=True)
class XClaim(GroupStep):
    command, timed, names = "xclaim", True, {"lastid": "last_id"}
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


@dataclass(frozen=True)
class XAutoClaim(GroupStep):
    command, timed = "xautoclaim", True
    key: bytes
    group: bytes
    consumer: bytes
    min_idle: int
    start: Id
    count: int | None = None
    justid: bool = False

    def from_model(self, value: Any) -> Any:
        _, claimed, _ = value
        return friendly(claimed if self.justid else value)  # redis-py hands out no more


@dataclass(frozen=True)
class XCfgSet(GroupStep):
    command, names = "xcfgset", {"duration": "idmp_duration", "maxsize": "idmp_maxsize"}
    key: bytes
    duration: int | None = None
    maxsize: int | None = None


@dataclass(frozen=True)
class XIdmpRecord(GroupStep):
    command = "xidmprecord"
    key: bytes
    producer: bytes
    iid: bytes
    entry_id: Id
