"""Addresses of servers that a test starts as programs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Keep ports that no other program gets in the block.

    A server that sets SO_REUSEADDR, as nearly all do, can listen on them nevertheless.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        yield [int(one.getsockname()[1]) for one in sockets]


def is_served(path: str) -> bool:
    """Return whether a server listens at a Unix socket, whose file is there before that."""
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(path) == 0
