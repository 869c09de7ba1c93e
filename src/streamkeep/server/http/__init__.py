"""Streams over HTTP: an ASGI application on Starlette, which `serving` runs on uvicorn.

`app.create_app` makes the application, also for others to mount. From the bottom up:

    wire       bytes in URLs, JSON, forms and errors
    overview   entries over time, groups, and what is stuck
    routes     one request, the table of routes, what serves them, and their description
    guard      what every request passes first: Host, Origin, password, sizes
    entries    pages of entries with bounded memory, and search
    events     the event stream: Server-Sent Events that resume
    streams, groups, queues, health    the routes
    app        all of it together
    serving    the server: sockets, time limits, stopping
"""
