"""What moves pending entries, and what makes appending idempotent, as steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.group_steps import GroupStep
from model.steps import friendly
from model.streams import ModelStore
from model.values import Id, id_text


@dataclass(frozen=True)
class XAck(GroupStep):
    """XACK."""

    key: bytes
    group: bytes
    ids: tuple[Id, ...]

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xack(self.key, self.group, *self.ids)

    def on_store(self, commands: Any) -> Any:
        return commands.xack(self.key, self.group, *map(id_text, self.ids))


@dataclass(frozen=True)
class XAckDel(GroupStep):
    """XACKDEL."""

    key: bytes
    group: bytes
    ids: tuple[Id, ...]
    policy: str = "KEEPREF"

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xackdel(self.key, self.group, list(self.ids), self.policy)

    def on_store(self, commands: Any) -> Any:
        ids = map(id_text, self.ids)
        return commands.xackdel(self.key, self.group, *ids, ref_policy=self.policy)


@dataclass(frozen=True)
class XDelEx(GroupStep):
    """XDELEX."""

    key: bytes
    ids: tuple[Id, ...]
    policy: str = "KEEPREF"

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xdelex(self.key, list(self.ids), self.policy)

    def on_store(self, commands: Any) -> Any:
        return commands.xdelex(self.key, *map(id_text, self.ids), ref_policy=self.policy)


@dataclass(frozen=True)
class XNack(GroupStep):
    """XNACK."""

    key: bytes
    group: bytes
    mode: str
    ids: tuple[Id, ...]
    retrycount: int | None = None
    force: bool = False

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xnack(
            self.key,
            self.group,
            self.mode,
            list(self.ids),
            retrycount=self.retrycount,
            force=self.force,
        )

    def on_store(self, commands: Any) -> Any:
        return commands.xnack(
            self.key,
            self.group,
            self.mode,
            *map(id_text, self.ids),
            retrycount=self.retrycount,
            force=self.force,
        )


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

    def on_store(self, commands: Any) -> Any:
        return commands.xclaim(
            self.key,
            self.group,
            self.consumer,
            self.min_idle,
            [id_text(one) for one in self.ids],
            idle=self.idle,
            time=self.time,
            retrycount=self.retrycount,
            force=self.force,
            justid=self.justid,
            last_id=None if self.lastid is None else id_text(self.lastid),
        )


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

    def on_store(self, commands: Any) -> Any:
        start = id_text(self.start)
        return commands.xautoclaim(
            self.key, self.group, self.consumer, self.min_idle, start, self.count, self.justid
        )

    def from_model(self, value: Any) -> Any:
        _, claimed, _ = value
        return friendly(claimed if self.justid else value)  # redis-py hands out no more


@dataclass(frozen=True)
class XCfgSet(GroupStep):
    """XCFGSET."""

    key: bytes
    duration: int | None = None
    maxsize: int | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xcfgset(self.key, duration=self.duration, maxsize=self.maxsize)

    def on_store(self, commands: Any) -> Any:
        return commands.xcfgset(self.key, self.duration, self.maxsize)


@dataclass(frozen=True)
class XIdmpRecord(GroupStep):
    """XIDMPRECORD."""

    key: bytes
    producer: bytes
    iid: bytes
    entry_id: Id

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.xidmprecord(self.key, self.producer, self.iid, self.entry_id)

    def on_store(self, commands: Any) -> Any:
        return commands.xidmprecord(self.key, self.producer, self.iid, id_text(self.entry_id))
