"""Replication in Redis's protocol: a store that follows a server, and servers that follow a store.

A store that follows a Redis server has its streams, with everything that it trims: `follower` runs
it; `link` is the connection, `spool` what came and is not applied, `commands` what is applied,
`synchronize` what is taken as a whole.

A server feeds replicas: `changes` learns from the journal which rows commits have changed, `steps`
writes the difference of two snapshots as commands of Redis, and `primary` sends them.

May import `transfer`, `commands`, `engine` and `format`.

    >>> from streamkeep.replication import Follower
    >>> Follower("redis://localhost", "orders.store").run(once=True)
"""

from __future__ import annotations

from streamkeep.format.rows.meta_rows import FollowingRow
from streamkeep.replication.follower import (
    Deletions,
    Follower,
    FollowError,
    attach,
    detach,
    following,
)
from streamkeep.replication.link import LinkLost, RefusedError

__all__ = [
    "Deletions",
    "FollowError",
    "Follower",
    "FollowingRow",
    "LinkLost",
    "RefusedError",
    "attach",
    "detach",
    "following",
]
