"""ASGI: one stream of a store as Server-Sent Events, for applications to mount.

    events = EventStream("answers.store", "answer", start="0")
    app = Starlette(routes=[Route("/events", events)])

`EventStream` is an ASGI application. GET follows the stream and resumes after the last event that a
client has received; POST appends, if that is allowed. Events and replies are those of the server
(`server.http`).
"""

from __future__ import annotations

from streamkeep.integrations.extras import missing

try:
    import starlette  # noqa: F401
except ImportError as error:
    raise missing("asgi", error) from error

from streamkeep.integrations.asgi.component import EventStream

__all__ = ["EventStream"]
