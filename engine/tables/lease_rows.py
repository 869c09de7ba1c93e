"""Under which lease pending entries were delivered: the third kind of row in `consumers`.

    (group, 03, consumer, update counter)    number of the lease, 0 for none

Every delivery gives its NACK the next update counter of the group. So one row per change of lease
is enough: a NACK belongs to the last row of its consumer whose update counter is not above that of
the NACK. A NACK before the first row belongs to no known lease.

Rows are removed when no pending entry needs them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from streamkeep.engine.tables.pel import Pel
from streamkeep.engine.tables.pel_walks import OwnedWalk
from streamkeep.engine.tables.scan import at_or_below, bodies_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.rows.group_records import Consumer, decode_lease
from streamkeep.format.rows.nacks import Nack, consumer_at, count_nacks, decode_nack

_WHERE: Final = "leases"
_MANY: Final = 16  # rows of a consumer above which those that are not needed are searched


def newest_lease(txn: Txn, prefix: bytes, consumer: int) -> int:
    cursor = txn.cursor(keys.CONSUMERS)
    if not at_or_below(cursor, keys.lease_key(prefix, consumer, keys.LAST_NUMBER)):
        return 0
    db_key = cursor.key()
    if not db_key.startswith(keys.leases_prefix(prefix, consumer)):
        return 0
    return decode_lease(row_body(keys.CONSUMERS, db_key, cursor.value(), _WHERE), _WHERE)


def newest_leases(txn: Txn, prefix: bytes, most: int) -> list[tuple[int, int]]:
    """Return (consumer number, newest lease) of consumers that have one, at most `most`."""
    found: list[tuple[int, int]] = []
    cursor = txn.cursor(keys.CONSUMERS)
    more = cursor.set_range(keys.leases_prefix(prefix))
    while more and len(found) < most:
        db_key = cursor.key()
        if not db_key.startswith(keys.leases_prefix(prefix)):
            break
        number, _ = keys.unpack_lease_key(db_key)
        found.append((number, newest_lease(txn, prefix, number)))
        more = cursor.set_range(keys.lease_key(prefix, number, keys.LAST_NUMBER))
    return found


def drop_leases(txn: WriteTxn, prefix: bytes, consumer: int) -> None:
    for db_key, _ in list(
        bodies_with(txn, keys.CONSUMERS, keys.leases_prefix(prefix, consumer), _WHERE)
    ):
        txn.delete(keys.CONSUMERS, db_key)


def tidy_leases(txn: WriteTxn, pel: Pel, consumer: Consumer) -> None:
    """Remove the rows of a consumer that no pending entry needs; of few, only if it has none."""
    if consumer.pending == 0:
        drop_leases(txn, pel.prefix, consumer.number)
        return
    under = keys.leases_prefix(pel.prefix, consumer.number)
    orders = [
        keys.unpack_lease_key(key)[1] for key, _ in bodies_with(txn, keys.CONSUMERS, under, _WHERE)
    ]
    if len(orders) <= _MANY:
        return
    needed: set[int] = set()
    walk = OwnedWalk(pel, consumer.number, (0, 0))
    page = walk.next()
    while page is not None:
        for index in range(count_nacks(page.data)):
            if consumer_at(page.data, index) == consumer.number:
                place = bisect_right(orders, decode_nack(page.data, index).order())
                if place:
                    needed.add(orders[place - 1])
        page = walk.next()
    for order in orders:
        if order not in needed:
            txn.delete(keys.CONSUMERS, keys.lease_key(pel.prefix, consumer.number, order))


class Deliveries:
    """The leases of all pending entries of a group, in one transaction."""

    def __init__(self, txn: Txn, pel: Pel) -> None:
        self._txn = txn
        self._pel = pel
        self._orders: dict[int, list[int]] = {}  # by consumer: update counters, ascending
        self._leases: dict[int, list[int]] = {}  # by consumer: the lease from each of them on
        self._dead: dict[int, bool] = {}  # by lease
        for db_key, body in bodies_with(
            txn, keys.CONSUMERS, keys.leases_prefix(pel.prefix), _WHERE
        ):
            consumer, order = keys.unpack_lease_key(db_key)
            orders = self._orders.get(consumer)
            if orders is None:
                orders = self._orders[consumer] = []
                self._leases[consumer] = []
            orders.append(order)
            self._leases[consumer].append(decode_lease(body, _WHERE))

    def lease_of(self, nack: Nack) -> int:
        """Return the lease under which an entry was delivered; 0 if that is unknown."""
        orders = self._orders.get(nack.consumer)
        if orders is None:
            return 0
        place = bisect_right(orders, nack.order())
        return self._leases[nack.consumer][place - 1] if place else 0

    def is_dead(self, nack: Nack) -> bool:
        """Return whether an entry was delivered under a lease that is dead."""
        return self._is_dead(self.lease_of(nack))

    def _is_dead(self, lease: int) -> bool:
        known = self._dead.get(lease)
        if known is None:
            leases = self._txn.context.leases
            known = leases is not None and leases.is_dead(lease)
            self._dead[lease] = known
        return known

    def dead_consumers(self) -> list[int]:
        """Return the numbers of the consumers that were given entries under a dead lease."""
        found: list[int] = []
        for consumer, leases in self._leases.items():
            if any([self._is_dead(lease) for lease in leases]):
                found.append(consumer)
        return found

    def is_ended(self, consumer: int) -> bool:
        """Return whether all leases of a consumer that has one are dead."""
        return all([self._is_dead(lease) for lease in self._leases[consumer]])

    def dead_of(self, consumer: int) -> Iterator[list[Nack]]:
        """Yield the NACKs of a consumer that were delivered under dead leases, page by page.

        Ascending by ID.
        """
        walk = OwnedWalk(self._pel, consumer, (0, 0))
        page = walk.next()
        while page is not None:
            nacks = [decode_nack(page.data, index) for index in range(count_nacks(page.data))]
            yield [one for one in nacks if one.consumer == consumer and self.is_dead(one)]
            page = walk.next()

    def drop_dead(self, txn: WriteTxn, consumer: int) -> None:
        """Remove the rows of dead leases under which a consumer has nothing pending any more.

        The newest row stays: it says whether the consumer is alive.
        """
        orders = self._orders[consumer]
        for place in range(len(orders) - 1):
            if self._is_dead(self._leases[consumer][place]):
                txn.delete(
                    keys.CONSUMERS, keys.lease_key(self._pel.prefix, consumer, orders[place])
                )
