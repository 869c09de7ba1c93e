"""XPENDING: the pending entries of a group, as a summary and in detail."""

from __future__ import annotations

from typing import NamedTuple

from streamkeep.engine.tables.existing import existing_group
from streamkeep.engine.tables.pel import Page
from streamkeep.engine.tables.pel_walks import OwnedWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.id_codec import Id
from streamkeep.format.rows.nacks import (
    OWNED,
    count_nacks,
    decode_nack,
    id_at,
    next_idle,
    position_of,
)


class PendingSummary(NamedTuple):
    """The short form of XPENDING."""

    total: int
    lowest: Id | None
    highest: Id | None
    consumers: list[tuple[bytes, int]]


class PendingEntry(NamedTuple):
    """One row of the long form: idle time -1 and no consumer for an entry without an owner."""

    id: Id
    consumer: bytes
    idle_ms: int
    delivery_count: int


def xpending(txn: Txn, name: bytes, group_name: bytes) -> PendingSummary:
    """Return number and range of the pending entries, and their number by consumer."""
    _, group = existing_group(txn, name, group_name)
    if group.record.pending == 0:
        return PendingSummary(0, None, None, [])
    counts = [(one.name, one.pending) for one in group.consumers() if one.pending]
    return PendingSummary(group.record.pending, group.pel.lowest(), group.pel.highest(), counts)


def xpending_range(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    start: Id,
    end: Id,
    count: int,
    consumer_name: bytes | None,
    idle: int,
) -> list[PendingEntry]:
    """Return pending entries by ID, of one consumer if it is named, idle for at least `idle`."""
    _, group = existing_group(txn, name, group_name)
    now_ms = txn.now_ms()
    latest = now_ms - idle if idle > 0 else OWNED  # also if the clock went back since
    pel = group.pel
    rows: list[PendingEntry] = []
    if count <= 0 or start > end:
        return rows
    only = 0
    owned: OwnedWalk | None = None
    page: Page | None
    if consumer_name is None:
        page = pel.page_from(*start)
    else:
        consumer = group.find_consumer(consumer_name)
        if consumer is None:
            return rows
        only = consumer.number
        owned = OwnedWalk(pel, only, start)
        page = owned.next()
    while page is not None:
        data = page.data
        nacks = count_nacks(data)
        index = next_idle(data, position_of(data, *start), latest)
        while index < nacks:
            nack = decode_nack(data, index)
            if nack.id() > end:
                return rows
            if not only or nack.consumer == only:
                idle_ms = nack.idle_ms(now_ms) if nack.consumer else -1
                owner = group.consumer_name(nack.consumer)
                rows.append(PendingEntry(nack.id(), owner, idle_ms, nack.delivery_count))
                if len(rows) == count:
                    return rows
            index = next_idle(data, index + 1, latest)
        if nacks and id_at(data, nacks - 1) > end:
            return rows
        page = pel.page_following(page) if owned is None else owned.next()
    return rows
