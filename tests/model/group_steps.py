"""Groups, reading with them, and looking at them, as steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.group_commands import GroupFrom
from model.steps import Bound, Step, read_from_text
from model.streams import ModelStore
from model.values import HIGHEST, ZERO, Id, id_text


def last_id_text(last_id: Id | None) -> bytes:
    """Return the ID argument of XGROUP as it is written."""
    return b"$" if last_id is None else id_text(last_id)


class GroupStep(Step):
    """A step that may be answered with OK."""

    def from_store(self, answer: Any) -> Any:
        return True if answer in (b"OK", "OK") else answer


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

    def on_store(self, commands: Any) -> Any:
        last_id = last_id_text(self.last_id)
        return commands.xgroup_create(
            self.key, self.group, last_id, mkstream=self.mkstream, entries_read=self.entries_read
        )


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

    def on_store(self, commands: Any) -> Any:
        last_id = last_id_text(self.last_id)
        return commands.xgroup_setid(self.key, self.group, last_id, self.entries_read)


@dataclass(frozen=True)
class XGroupDestroy(GroupStep):
    """XGROUP DESTROY."""

    key: bytes
    group: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xgroup_destroy(self.key, self.group)

    def on_store(self, commands: Any) -> Any:
        return commands.xgroup_destroy(self.key, self.group)


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

    def on_store(self, commands: Any) -> Any:
        run = commands.xgroup_delconsumer if self.delete else commands.xgroup_createconsumer
        return run(self.key, self.group, self.consumer)


@dataclass(frozen=True)
class XReadGroup(GroupStep):
    """XREADGROUP without BLOCK."""

    group: bytes
    consumer: bytes
    streams: tuple[tuple[bytes, GroupFrom], ...]
    count: int | None = None
    noack: bool = False
    claim: int | None = None
    maxcount: int | None = None
    maxsize: int | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xreadgroup(
            self.group,
            self.consumer,
            list(self.streams),
            now_ms=now_ms,
            count=self.count,
            maxcount=self.maxcount,
            maxsize=self.maxsize,
            claim=self.claim,
            noack=self.noack,
        )

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

    key: bytes
    group: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xpending(self.key, self.group)

    def on_store(self, commands: Any) -> Any:
        return commands.xpending(self.key, self.group)

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
    """XINFO GROUPS."""

    key: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xinfo_groups(self.key)

    def on_store(self, commands: Any) -> Any:
        return commands.xinfo_groups(self.key)


@dataclass(frozen=True)
class XInfoConsumers(GroupStep):
    """XINFO CONSUMERS."""

    key: bytes
    group: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xinfo_consumers(self.key, self.group, now_ms=now_ms)

    def on_store(self, commands: Any) -> Any:
        return commands.xinfo_consumers(self.key, self.group)
