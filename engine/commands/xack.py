"""XACK, XACKDEL, XDELEX and XNACK. Compiled by mypyc."""

from __future__ import annotations

from typing import Final

from streamkeep.engine.commands.arguments import parse_ids
from streamkeep.engine.commands.xdel import delete_entries
from streamkeep.engine.commands.xrange import exists
from streamkeep.engine.commands.xtrim import ACKED, DELREF, References
from streamkeep.engine.notify import wait_table
from streamkeep.engine.tables.existing import existing_group
from streamkeep.engine.tables.group import Group, find_group
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.id_codec import Id
from streamkeep.format.rows.nacks import MAX_COUNT

SILENT: Final = 0  # the consumer is shutting down: the delivery does not count
FAIL: Final = 1  # it could not process the entry
FATAL: Final = 2  # no consumer can process it

DELETED: Final = 1
ABSENT: Final = -1
REFERENCED: Final = 2

Ids = list[bytes]  # as text: IDs are parsed after key and group were found, as in Redis


def xack(txn: WriteTxn, name: bytes, group_name: bytes, ids: Ids) -> int:
    """Acknowledge entries; return how many were pending (XACK)."""
    group = _find_group(txn, name, group_name)
    if group is None:
        return 0
    return group.ack_many(parse_ids(ids))


def _find_group(txn: WriteTxn, name: bytes, group_name: bytes) -> Group | None:
    stream = txn.find_stream(name)
    return None if stream is None else find_group(txn, stream, group_name)


def first_lost(
    txn: WriteTxn,
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    deliveries: list[tuple[int, int, int]],
) -> Id | None:
    """Return the first entry whose delivery a consumer no longer has; None if it has them all.

    Args:
        deliveries: time and number of each ID, and the delivery count that it was taken with.
    """
    group = _find_group(txn, name, group_name)
    consumer = None if group is None else group.find_consumer(consumer_name)
    for ms, seq, count in deliveries:
        if group is None or consumer is None:
            return ms, seq
        nack = group.pel.get(ms, seq)
        if nack is None or nack.consumer != consumer.number or nack.delivery_count != count:
            return ms, seq
    return None


def acknowledge(txn: WriteTxn, name: bytes, group_name: bytes, ids: list[Id]) -> None:
    """Acknowledge entries, whose IDs are numbers."""
    group = _find_group(txn, name, group_name)
    if group is not None:
        group.ack_many(ids)


def xackdel(txn: WriteTxn, name: bytes, group_name: bytes, ids: Ids, policy: int) -> list[int]:
    """Acknowledge entries and delete them as the policy says (XACKDEL).

    Returns:
        For each ID -1 if it was not pending, 1 if it was deleted or gone, 2 if it was kept
        because another group refers to it.
    """
    stream = txn.find_stream(name)
    group = None if stream is None else find_group(txn, stream, group_name)
    if stream is None or group is None:
        return [ABSENT] * len(ids)
    results: list[int] = []
    deletion = Deletion(txn, stream, policy)
    for ms, seq in parse_ids(ids):
        if not group.ack(ms, seq):
            results.append(ABSENT)
        elif deletion.includes(ms, seq):
            results.append(DELETED)
        else:
            results.append(REFERENCED)
    deletion.run()
    return results


def xdelex(txn: WriteTxn, name: bytes, ids: Ids, policy: int) -> list[int]:
    """Delete entries as the policy says (XDELEX).

    Returns:
        For each ID 1 if it was deleted, -1 if there is no such entry, 2 if it was kept
        because a group refers to it.
    """
    stream = txn.find_stream(name)
    if stream is None:
        return [ABSENT] * len(ids)
    deletion = Deletion(txn, stream, policy)
    wanted = parse_ids(ids)
    included = [deletion.includes(ms, seq) for ms, seq in wanted]
    gone = deletion.run()
    results: list[int] = []
    for one, goes in zip(wanted, included, strict=True):
        if not goes:
            results.append(REFERENCED)
        elif one in gone:
            gone.discard(one)  # the same ID may be given again
            results.append(DELETED)
        else:
            results.append(ABSENT)
    return results


def delete_acknowledged(txn: WriteTxn, name: bytes, ids: list[Id]) -> None:
    """Delete entries that no group has pending, or has yet to read; their IDs are numbers."""
    stream = txn.find_stream(name)
    if stream is not None:
        deletion = Deletion(txn, stream, ACKED)
        for ms, seq in ids:
            deletion.includes(ms, seq)
        deletion.run()


class Deletion:
    """Deletes entries of a stream under a reference policy, all at once: each node changes once."""

    def __init__(self, txn: WriteTxn, stream: Stream, policy: int) -> None:
        self.txn = txn
        self.stream = stream
        self.policy = policy
        self.wanted: list[tuple[int, int]] = []
        self.references: References | None = None
        if policy in (DELREF, ACKED):
            self.references = References(txn, stream)

    def includes(self, ms: int, seq: int) -> bool:
        """Note an entry for deletion; return False if the policy keeps it."""
        references = self.references
        if references is not None:
            if self.policy == ACKED and references.held(ms, seq):
                return False
            if self.policy == DELREF:
                references.drop(ms, seq)
        self.wanted.append((ms, seq))
        return True

    def run(self) -> set[tuple[int, int]]:
        """Delete the entries; return those that were live."""
        return delete_entries(self.txn, self.stream, self.wanted)


def xnack(
    txn: WriteTxn, name: bytes, group_name: bytes, mode: int, ids: Ids, retrycount: int, force: bool
) -> int:
    """Release pending entries, so that any consumer may claim them; return how many (XNACK).

    Args:
        mode: SILENT, FAIL or FATAL.
        retrycount: the delivery count to set; -1 if the mode decides.
        force: also make entries of the stream pending that were not.
    """
    stream, group = existing_group(txn, name, group_name)
    given_back = 0
    for ms, seq in parse_ids(ids):
        nack = group.pel.get(ms, seq)
        before = 0
        if nack is not None:
            before = nack.delivery_count
        elif not force or not exists(txn, stream, ms, seq):
            continue
        count = before
        if retrycount >= 0:
            count = retrycount
        elif mode == SILENT:
            count = max(0, before - 1)
        elif mode == FATAL:
            count = MAX_COUNT
        group.give_back(ms, seq, count)
        given_back += 1
    if given_back:
        txn.events.append(wait_table.given_back(name, group_name, given_back))
    return given_back
