"""Paths that the driver has and an executor lacks: which host, and what to do.

Used by tasks.
"""

from __future__ import annotations

import os
import socket

from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.storage.places import file_system, is_local


class NotOnExecutorError(StreamkeepError):
    """The host of an executor does not have what the driver has under a path."""


def unreachable(path: str, kind: str, why: str) -> NotOnExecutorError:
    """Return the error for a path that is missing on this host.

    Args:
        kind: what the driver has there, such as "store".
    """
    return NotOnExecutorError(
        f"the executor on host {socket.gethostname()} does not have the {kind} {path} that the "
        f"driver has ({why}); next: run where the path is, with --master 'local[*]', or let "
        "executors read files: set tailExport (--tail-export) to a folder, and keep the archive "
        "under a path or URI, that all hosts reach"
    )


def check_reached(path: str, kind: str) -> None:
    """Raise NotOnExecutorError if a local folder is missing or empty on this host."""
    if is_local(path):
        folder = file_system(path)[1]
        if not os.path.isdir(folder):
            raise unreachable(path, kind, "there is no such folder")
        if not os.listdir(folder):
            raise unreachable(path, kind, "the folder is empty")


def host() -> str:
    """Return a name of this host, to compare the host of a task with that of the driver."""
    return socket.gethostname()
