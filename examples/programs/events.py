"""Server-sent events: `uvicorn events:app`, then `curl -N http://localhost:8000/orders`.

A client that connects again continues after the last entry that it has received. POST appends:
`curl -d sku=7 http://localhost:8000/orders`.
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamkeep.integrations.asgi import EventStream


def key_of(request: Request) -> str:
    return str(request.path_params["key"])


events = EventStream("events.store", key_of, append=True)
app = Starlette(routes=[Route("/{key}", events)])
