"""The tokens of a long answer, in a browser that may reload, or lose its connection, in the middle.

    python answers.py STORE [PORT]        then open http://127.0.0.1:PORT/

The program that writes the answer and the page that shows it know only the stream. So the page
shows every token once, however often it is loaded, and also after a restart of the server.
"""

import asyncio
import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

import streamkeep.aio
from streamkeep.integrations.asgi import EventStream

PAGE = """<!doctype html><meta charset="utf-8"><title>Answer</title><link rel="icon" href="data:,">
<p id="answer"></p>
<script>
const name = location.pathname.split("/").pop();
const events = new EventSource(`/events/${name}`);
events.onmessage = (event) => {
  const { token, end } = JSON.parse(event.data).fields;
  if (end) { events.close(); document.body.dataset.ended = "yes"; }
  else document.querySelector("#answer").append(token);
};
</script>"""

TEXT = "Streams keep every token in order, so a page that reloads shows the whole answer. "


async def write_answer(store: streamkeep.aio.AsyncStore[bytes], key: str, pause_s: float) -> None:
    """Write tokens as a model would; `tokens.append` is all that a model needs."""
    for word in (TEXT * 3).split():
        await store.xadd(key, {"token": word + " "})
        await asyncio.sleep(pause_s)
    await store.xadd(key, {"end": "1"})


def create_app(store: streamkeep.aio.AsyncStore[bytes], pause_s: float = 0.05) -> Starlette:
    tasks: set[asyncio.Task[None]] = set()

    def key(request: Request) -> str:
        return f"answer:{request.path_params['name']}"

    async def ask(request: Request) -> Response:
        task = asyncio.create_task(write_answer(store, key(request), pause_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return JSONResponse({"answer": f"/answers/{request.path_params['name']}"}, 202)

    async def page(request: Request) -> Response:
        return HTMLResponse(PAGE)

    return Starlette(
        routes=[
            Route("/answers/{name}", page),
            Route("/answers/{name}", ask, methods=["POST"]),
            Route("/events/{name}", EventStream(store, key, start="0")),
        ]
    )


async def main(path: str, port: int) -> None:
    import uvicorn

    async with await streamkeep.aio.open(path) as store:
        app = create_app(store)
        print(f"http://127.0.0.1:{port}/answers/one; begin with: curl -X POST that")
        config = uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8000))
