"""What the modules with commands of the connection have in common.

A handler takes the connection, the words and the turn, and returns a reply, or ALREADY where it has
queued its reply itself. `server_commands` fills HANDLERS and TABLE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from streamkeep.server.commands.table import Spec
from streamkeep.server.resp.turn import Turn

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection

REDIS_VERSION: Final = "8.10.0"  # whose commands the server has

Handler = Callable[["Connection", list[bytes], Turn], object]

HANDLERS: Final[dict[str, Handler]] = {}  # by the names of their commands
TABLE: Final[dict[bytes, Spec]] = {}  # every command that the server knows


ALREADY: Final = object()
