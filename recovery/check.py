"""Check a whole store: every check, on every stream, on one snapshot.

Checking never changes anything. Damage ends one check, not the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from streamkeep.engine.api import Store
from streamkeep.engine.keyspace import iter_keys
from streamkeep.engine.txn import Txn
from streamkeep.format.errors import CorruptionError
from streamkeep.recovery.catalogue import guarded
from streamkeep.recovery.check_groups import check_group_numbers, check_groups
from streamkeep.recovery.check_messages import check_message_numbers, check_messages
from streamkeep.recovery.check_rows import check_garbage, check_rows
from streamkeep.recovery.check_streams import check_names, check_orphans, check_stream
from streamkeep.recovery.findings import Finding

STORE_CHECKS: tuple[Callable[[Txn], Iterator[Finding]], ...] = (
    check_names,
    check_rows,
    check_orphans,
    check_group_numbers,
    check_message_numbers,
    check_garbage,
)
STREAM_CHECKS: tuple[Callable[[Txn, int, bytes], Iterator[Finding]], ...] = (
    check_stream,
    check_groups,
    check_messages,
)


def check(store: Store[Any] | str | Path) -> Iterator[Finding]:
    """Yield everything that is wrong with a store, in key order.

    Args:
        store: an open store, or the path of one, which is opened for reading.
    """
    if isinstance(store, Store):
        yield from _check_snapshot(store)
        return
    with Store(store, readonly=True) as opened:
        yield from _check_snapshot(opened)


def _check_snapshot(store: Store[Any]) -> Iterator[Finding]:
    with store.snapshot() as snapshot:
        yield from check_txn(snapshot.txn)


def check_txn(txn: Txn) -> Iterator[Finding]:
    """Run every check on one snapshot."""
    for check_one in STORE_CHECKS:
        yield from guarded(check_one(txn))
    try:
        names = list(iter_keys(txn))
    except CorruptionError:
        return  # reported by check_names
    for name, number in names:
        for check_stream_one in STREAM_CHECKS:
            yield from guarded(check_stream_one(txn, number, name))
