"""Server-sent events: `uvicorn events:app`, then `curl -N http://localhost:8000/orders`.

A client that connects again continues after the last entry that it has received.
"""

from starlette.applications import Starlette
from starlette.routing import Route

import streamkeep
from streamkeep.aio import AsyncStore
from streamkeep.server.http.events import EventReply, EventStream, starting_id

store = AsyncStore(streamkeep.open("events.store"))


async def listen(request):
    key = request.path_params["key"].encode()
    last = request.headers.get("Last-Event-ID", "$").encode()
    after = await starting_id(store, key, last)
    return EventReply(EventStream(store, key, after).chunks(), "text/event-stream", 60)


app = Starlette(routes=[Route("/{key}", listen)])
