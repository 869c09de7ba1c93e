"""A plugin for the tests of fakeredis: its clients reach the server at STREAMKEEP_PORT, database 0.

They expect a server at port 6390 and use database 2, which a store does not have. They tell Redis
from its forks by the name of the server, so that Streamkeep's is hidden.
"""

from __future__ import annotations

import os
from typing import Any

import redis
import redis.asyncio.connection
import redis.connection


def _redirect(kind: Any) -> None:
    begin = kind.__init__

    def begin_there(self: Any, *args: Any, **settings: Any) -> None:
        settings.update(host="127.0.0.1", port=int(os.environ["STREAMKEEP_PORT"]), db=0)
        begin(self, *args, **settings)

    kind.__init__ = begin_there


def _hide_name(kind: Any) -> None:
    ask = kind.info

    def info(self: Any, *args: Any, **settings: Any) -> Any:
        found = ask(self, *args, **settings)
        found.pop("server_name", None)
        return found

    kind.info = info


_redirect(redis.connection.Connection)
_redirect(redis.asyncio.connection.Connection)
_hide_name(redis.Redis)
