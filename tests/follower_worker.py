"""A process that follows a server with a store, to be killed: `SOURCE STORE [SETTINGS]`."""

from __future__ import annotations

import json
import sys

from streamkeep.replication import Follower

if __name__ == "__main__":
    source, store, *settings = sys.argv[1:]
    options = json.loads(settings[0]) if settings else {}
    once = options.pop("once", False)
    Follower(source, store, told=lambda text: print(text, flush=True), **options).run(once=once)
