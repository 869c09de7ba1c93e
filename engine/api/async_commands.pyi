"""Types of async_commands.py, made from the sources: `make docs`."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Generic, Literal, overload

from streamkeep.engine.api.command_base import (
    Claimed,
    ClaimedIds,
    Condition,
    Fields,
    Id,
    Key,
    Named,
    NamedClaimed,
    Pair,
    RangeId,
    ReadStreams,
    RefPolicy,
    Streams,
)
from streamkeep.engine.api.group_commands import NackMode
from streamkeep.engine.commands.xinfo import Info
from streamkeep.format.core.entry import Entry, Text
from streamkeep.format.rows.retention import Retention

class AsyncScanEntry(Entry[Text]):
    async def delete(self: Any) -> bool: ...

class AsyncCommands(Generic[Text]):
    """The commands of Redis Streams as coroutines."""

    _decode: bool
    def __aiter__(self) -> AsyncIterator[Text]: ...
    def _set_decode(self, decode: bool) -> None: ...
    @overload
    async def xadd(
        self,
        name: Key,
        fields: Fields | Sequence[Pair],
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: Literal[False] = False,
        minid: RangeId | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text: ...
    @overload
    async def xadd(
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
    ) -> Text | None: ...
    @overload
    async def xadd_many(
        self, name: Key, entries: Iterable[Fields], ids: Iterable[Id] | None = None
    ) -> list[Text]: ...
    @overload
    async def xadd_many(
        self, name: Key, entries: Iterable[Iterable[Pair]], ids: Iterable[Id] | None = None
    ) -> list[Text]: ...
    @overload
    async def xadd_many(
        self, name: Key, entries: Iterable[Fields | Iterable[Pair]], ids: Iterable[Id] | None = None
    ) -> list[Text]: ...
    async def xdel(self, name: Key, *ids: Id) -> int: ...
    async def xtrim(
        self,
        name: Key,
        maxlen: int | None = None,
        approximate: bool = True,
        minid: RangeId | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
    ) -> int: ...
    async def trim_range(self, name: Key, start: RangeId, end: RangeId) -> int: ...
    async def xsetid(
        self, name: Key, id: Id, entries_added: int | None = None, max_deleted_id: Id | None = None
    ) -> bool: ...
    async def xcfgset(
        self, name: Key, idmp_duration: int | None = None, idmp_maxsize: int | None = None
    ) -> Text: ...
    async def xidmprecord(self, name: Key, producer: Key, iid: Key, id: Id) -> Text: ...
    async def xlen(self, name: Key) -> int: ...
    async def xrange(
        self,
        name: Key,
        min: RangeId = "-",
        max: RangeId = "+",
        count: int | None = None,
        *,
        history: bool = False,
    ) -> list[Entry[Text]]: ...
    async def xrevrange(
        self,
        name: Key,
        max: RangeId = "+",
        min: RangeId = "-",
        count: int | None = None,
        *,
        history: bool = False,
    ) -> list[Entry[Text]]: ...
    async def xread(
        self,
        streams: ReadStreams,
        count: int | None = None,
        block: int | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> list[Named[Text]]: ...
    def scan(
        self,
        name: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        reverse: bool = False,
        history: bool = False,
        where: Condition | None = None,
    ) -> AsyncIterator[AsyncScanEntry[Text]]: ...
    async def xinfo_stream(self, name: Key, full: bool = False, count: int = 10) -> Info: ...
    async def xgroup_create(
        self,
        name: Key,
        groupname: Key,
        id: RangeId = "$",
        mkstream: bool = False,
        entries_read: int | None = None,
    ) -> bool: ...
    async def xgroup_exists(self, name: Key, groupname: Key) -> bool: ...
    async def xgroup_setid(
        self, name: Key, groupname: Key, id: RangeId, entries_read: int | None = None
    ) -> bool: ...
    async def xgroup_destroy(self, name: Key, groupname: Key) -> bool: ...
    async def xgroup_createconsumer(self, name: Key, groupname: Key, consumername: Key) -> int: ...
    async def xgroup_delconsumer(self, name: Key, groupname: Key, consumername: Key) -> int: ...
    @overload
    async def xreadgroup(
        self,
        groupname: Key,
        consumername: Key,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        noack: bool = False,
        claim_min_idle_time: None = None,
        max_count: int | None = None,
        max_size: int | None = None,
        *,
        claim_dead: Literal[False] = False,
    ) -> list[Named[Text]]: ...
    @overload
    async def xreadgroup(
        self,
        groupname: Key,
        consumername: Key,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        noack: bool = False,
        *,
        claim_min_idle_time: int,
        max_count: int | None = None,
        max_size: int | None = None,
        claim_dead: bool | Literal["owned"] = False,
    ) -> list[NamedClaimed[Text]]: ...
    @overload
    async def xreadgroup(
        self,
        groupname: Key,
        consumername: Key,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        noack: bool = False,
        claim_min_idle_time: None = None,
        max_count: int | None = None,
        max_size: int | None = None,
        *,
        claim_dead: Literal[True, "owned"],
    ) -> list[NamedClaimed[Text]]: ...
    @overload
    async def xreadgroup(
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
    ) -> list[Named[Text]] | list[NamedClaimed[Text]]: ...
    async def xack(self, name: Key, groupname: Key, *ids: Id) -> int: ...
    async def xackdel(
        self, name: Key, groupname: Key, *ids: Id, ref_policy: RefPolicy = "KEEPREF"
    ) -> list[int]: ...
    async def xdelex(self, name: Key, *ids: Id, ref_policy: RefPolicy = "KEEPREF") -> list[int]: ...
    async def xnack(
        self,
        name: Key,
        groupname: Key,
        mode: NackMode,
        *ids: Id,
        retrycount: int | None = None,
        force: bool = False,
    ) -> int: ...
    async def xinfo_groups(self, name: Key) -> list[Info]: ...
    async def xinfo_consumers(
        self, name: Key, groupname: Key, *, leases: bool = False
    ) -> list[Info]: ...
    async def xgroup_help(self) -> list[str]: ...
    async def xinfo_help(self) -> list[str]: ...
    async def xpending(self, name: Key, groupname: Key) -> Info: ...
    async def xpending_range(
        self,
        name: Key,
        groupname: Key,
        min: RangeId,
        max: RangeId,
        count: int,
        consumername: Key | None = None,
        idle: int | None = None,
    ) -> list[Info]: ...
    @overload
    async def xclaim(
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
        justid: Literal[False] = False,
        last_id: Id | None = None,
    ) -> list[Entry[Text]]: ...
    @overload
    async def xclaim(
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
        *,
        justid: Literal[True],
        last_id: Id | None = None,
    ) -> list[Text]: ...
    @overload
    async def xclaim(
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
    ) -> list[Entry[Text]] | list[Text]: ...
    @overload
    async def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        justid: Literal[False] = False,
        *,
        whole: bool = False,
        dead: bool = False,
    ) -> Claimed[Text]: ...
    @overload
    async def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        *,
        justid: Literal[True],
        whole: Literal[False] = False,
        dead: bool = False,
    ) -> list[Text]: ...
    @overload
    async def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        *,
        justid: Literal[True],
        whole: Literal[True],
        dead: bool = False,
    ) -> ClaimedIds[Text]: ...
    @overload
    async def xautoclaim(
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
    ) -> Claimed[Text] | ClaimedIds[Text] | list[Text]: ...
    async def set_retention(
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
    ) -> Retention: ...
    async def retention(self, name: Key) -> Retention: ...
    async def delete(self, *names: Key) -> int: ...
    async def unlink(self, *names: Key) -> int: ...
    async def exists(self, *names: Key) -> int: ...
    async def type(self, name: Key) -> Text: ...
    async def keys(self, pattern: Key = "*") -> list[Text]: ...
    def scan_iter(
        self, match: Key | None = None, count: int | None = None
    ) -> AsyncIterator[Text]: ...
    async def rename(self, src: Key, dst: Key) -> bool: ...
    async def renamenx(self, src: Key, dst: Key) -> bool: ...
    async def dump(self, name: Key, server: str | None = None) -> bytes | None: ...
    async def restore(self, name: Key, ttl: int, value: bytes, replace: bool = False) -> bool: ...
    async def row_get(self, space: Key, key: bytes) -> bytes | None: ...
    async def row_put(self, space: Key, key: bytes, value: bytes) -> None: ...
    async def row_delete(self, space: Key, key: bytes) -> bool: ...
    async def row_range(
        self,
        space: Key,
        first: bytes = b"",
        last: bytes = b"",
        count: int | None = None,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]: ...
