"""Types of pipeline_commands.py, made from the sources: `make docs`."""

from collections.abc import Iterable, Sequence
from typing import Literal, Self

from streamkeep.engine.api.command_base import (
    Fields,
    Id,
    Key,
    Pair,
    RangeId,
    ReadStreams,
    RefPolicy,
    Streams,
)
from streamkeep.engine.api.group_commands import NackMode

class PipelineCommands:
    """The commands of Redis Streams, each of which returns the pipeline that it was queued in."""

    _decode: bool
    def _set_decode(self, decode: bool) -> None: ...
    def xadd(
        self,
        name: Key,
        fields: Fields | Sequence[Pair],
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: bool = False,
        minid: RangeId | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Self: ...
    def xadd_many(
        self, name: Key, entries: Iterable[Fields | Iterable[Pair]], ids: Iterable[Id] | None = None
    ) -> Self: ...
    def xdel(self, name: Key, *ids: Id) -> Self: ...
    def xtrim(
        self,
        name: Key,
        maxlen: int | None = None,
        approximate: bool = True,
        minid: RangeId | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
    ) -> Self: ...
    def trim_range(self, name: Key, start: RangeId, end: RangeId) -> Self: ...
    def xsetid(
        self, name: Key, id: Id, entries_added: int | None = None, max_deleted_id: Id | None = None
    ) -> Self: ...
    def xcfgset(
        self, name: Key, idmp_duration: int | None = None, idmp_maxsize: int | None = None
    ) -> Self: ...
    def xidmprecord(self, name: Key, producer: Key, iid: Key, id: Id) -> Self: ...
    def xlen(self, name: Key) -> Self: ...
    def xrange(
        self,
        name: Key,
        min: RangeId = "-",
        max: RangeId = "+",
        count: int | None = None,
        *,
        history: bool = False,
    ) -> Self: ...
    def xrevrange(
        self,
        name: Key,
        max: RangeId = "+",
        min: RangeId = "-",
        count: int | None = None,
        *,
        history: bool = False,
    ) -> Self: ...
    def xread(
        self,
        streams: ReadStreams,
        count: int | None = None,
        block: int | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> Self: ...
    def xinfo_stream(self, name: Key, full: bool = False, count: int = 10) -> Self: ...
    def xgroup_create(
        self,
        name: Key,
        groupname: Key,
        id: RangeId = "$",
        mkstream: bool = False,
        entries_read: int | None = None,
    ) -> Self: ...
    def xgroup_exists(self, name: Key, groupname: Key) -> Self: ...
    def xgroup_setid(
        self, name: Key, groupname: Key, id: RangeId, entries_read: int | None = None
    ) -> Self: ...
    def xgroup_destroy(self, name: Key, groupname: Key) -> Self: ...
    def xgroup_createconsumer(self, name: Key, groupname: Key, consumername: Key) -> Self: ...
    def xgroup_delconsumer(self, name: Key, groupname: Key, consumername: Key) -> Self: ...
    def xreadgroup(
        self,
        groupname: Key,
        consumername: Key,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        noack: bool = False,
        claim_min_idle_time: int | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
        *,
        claim_dead: bool | Literal["owned"] = False,
    ) -> Self: ...
    def xack(self, name: Key, groupname: Key, *ids: Id) -> Self: ...
    def xackdel(
        self, name: Key, groupname: Key, *ids: Id, ref_policy: RefPolicy = "KEEPREF"
    ) -> Self: ...
    def xdelex(self, name: Key, *ids: Id, ref_policy: RefPolicy = "KEEPREF") -> Self: ...
    def xnack(
        self,
        name: Key,
        groupname: Key,
        mode: NackMode,
        *ids: Id,
        retrycount: int | None = None,
        force: bool = False,
    ) -> Self: ...
    def xinfo_groups(self, name: Key) -> Self: ...
    def xinfo_consumers(self, name: Key, groupname: Key, *, leases: bool = False) -> Self: ...
    def xgroup_help(self) -> Self: ...
    def xinfo_help(self) -> Self: ...
    def xpending(self, name: Key, groupname: Key) -> Self: ...
    def xpending_range(
        self,
        name: Key,
        groupname: Key,
        min: RangeId,
        max: RangeId,
        count: int,
        consumername: Key | None = None,
        idle: int | None = None,
    ) -> Self: ...
    def xclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        message_ids: Sequence[Id],
        idle: int | None = None,
        time: int | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: bool = False,
        last_id: Id | None = None,
    ) -> Self: ...
    def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        justid: bool = False,
        *,
        whole: bool = False,
        dead: bool = False,
    ) -> Self: ...
    def set_retention(
        self,
        name: Key,
        *,
        maxlen: int | None = None,
        max_age_ms: int | None = None,
        max_bytes: int | None = None,
        archive: bool | None = None,
        keep_unacknowledged: bool | None = None,
        approximate: bool | None = None,
        archive_max_age_ms: int | None = None,
        keep_max_bytes: int | None = None,
        when_full: Literal["refuse", "trim"] | None = None,
    ) -> Self: ...
    def retention(self, name: Key) -> Self: ...
    def delete(self, *names: Key) -> Self: ...
    def unlink(self, *names: Key) -> Self: ...
    def exists(self, *names: Key) -> Self: ...
    def type(self, name: Key) -> Self: ...
    def keys(self, pattern: Key = "*") -> Self: ...
    def rename(self, src: Key, dst: Key) -> Self: ...
    def renamenx(self, src: Key, dst: Key) -> Self: ...
    def dump(self, name: Key, server: str | None = None) -> Self: ...
    def restore(self, name: Key, ttl: int, value: bytes, replace: bool = False) -> Self: ...
    def row_get(self, space: Key, key: bytes) -> Self: ...
    def row_put(self, space: Key, key: bytes, value: bytes) -> Self: ...
    def row_delete(self, space: Key, key: bytes) -> Self: ...
    def row_range(
        self,
        space: Key,
        first: bytes = b"",
        last: bytes = b"",
        count: int | None = None,
        reverse: bool = False,
    ) -> Self: ...
