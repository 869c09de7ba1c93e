"""The reference model of Redis Streams: plain Python that shares no code with the engine.

`ModelStore` is the door; see `model.streams` for how its commands take arguments and answer.
"""

from __future__ import annotations

from model.streams import ModelStore, NewId, ReadFrom
from model.values import HIGHEST, MAX, ZERO, Entry, Id, ModelError, Pairs, id_text

__all__ = [
    "HIGHEST",
    "MAX",
    "ZERO",
    "Entry",
    "Id",
    "ModelError",
    "ModelStore",
    "NewId",
    "Pairs",
    "ReadFrom",
    "id_text",
]
