"""Streams over HTTP: an ASGI application on Starlette, which `serving` runs on uvicorn.

`app.create_app` makes the application, also for others to mount. From the bottom up:

    wire       bytes in URLs, JSON, forms and errors
    multipart  forms with files
    overview   what a store holds, and its entries over time
    routes     one request, the table of routes, their description, and what serves them
    guard      what every request passes first: Host, Origin, password, sizes
    entries    pages of entries with bounded memory, and search
    events     the event stream: Server-Sent Events that resume
    streams, groups, queues, health    the routes
    app        all of it together
    serving    the server: sockets, time limits, stopping
"""
