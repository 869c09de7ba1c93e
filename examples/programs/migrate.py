"""Copy all streams: `python migrate.py redis://localhost/0 shop.store`, or the other way round.

Entries keep their IDs; groups, consumers and pending entries come along. Keys that exist in the
target are left as they are. Keys of other types are counted. A third argument is the version of
the server that a store is copied to, such as 7.0.
"""

import sys
from typing import Any

import redis

import streamkeep

if len(sys.argv) < 3:
    sys.exit(__doc__)
source, target, *version = sys.argv[1:]


def connect(place: str) -> Any:
    return redis.Redis.from_url(place) if "://" in place else streamkeep.open(place)


copied = others = present = expiring = 0
with connect(source) as old, connect(target) as new:
    for key in old.scan_iter():
        if old.type(key) != b"stream":
            others += 1
        elif new.exists(key):
            present += 1
        elif payload := old.dump(key, *version):  # None where it was deleted, or has expired
            new.restore(key, 0, payload)
            copied += 1
            expiring += isinstance(old, redis.Redis) and old.pttl(key) > 0
print(f"{copied} streams copied, {present} were there, {others} keys of other types")
if expiring:
    print(f"{expiring} of them would expire in the Redis, and do not where they were copied to")
