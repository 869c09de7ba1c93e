"""Following a Redis server: its streams in a store, with everything that it trims.

`follower` runs it; `link` is the connection, `spool` what came and is not applied, `commands` what
is applied, `synchronize` what is taken as a whole. May import `transfer`, `server.commands`,
`engine` and `format`.

    >>> from streamkeep.replication import Follower
    >>> Follower("redis://localhost", "orders.store").run(once=True)
"""

from __future__ import annotations

from streamkeep.format.rows.following import FollowingRow
from streamkeep.replication.follower import Deletions, Follower, FollowError, detach, following
from streamkeep.replication.link import LinkLost, RefusedError

__all__ = [
    "Deletions",
    "FollowError",
    "Follower",
    "FollowingRow",
    "LinkLost",
    "RefusedError",
    "detach",
    "following",
]
