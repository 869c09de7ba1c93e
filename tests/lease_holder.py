"""A program that forks processes which consume and then wait to be killed; see `fork_server`."""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamkeep
from fork_server import serve


@dataclass
class Holder:
    """What a process does.

    Attributes:
        consumer: the name under which it takes entries of the stream `s` in the group `g`.
        count: how many it takes; 0 for what others have pending.
        then: "wait"; "fork" a child that waits as well, and write its number; "close" the store.
        note: a file that it writes when it is done.
    """

    path: str
    consumer: str
    count: int
    then: str
    note: str


def hold(wanted: dict[str, Any]) -> None:
    holder = Holder(**wanted)
    store = streamkeep.open(holder.path, sync="none")
    if holder.count:
        store.xreadgroup("g", holder.consumer, {"s": ">"}, count=holder.count)
    else:
        store.xautoclaim("s", "g", holder.consumer, 0)
    said = "done"
    if holder.then == "close":
        store.close()
    elif holder.then == "fork":
        with warnings.catch_warnings():  # from Python 3.12 on, a process with threads is warned
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        said = str(child)
    note = Path(holder.note)
    note.with_suffix(".new").write_text(said)
    note.with_suffix(".new").rename(note)
    while True:
        signal.pause()


if __name__ == "__main__":
    serve(hold, lambda wanted: f"{wanted['note']}.errors")
