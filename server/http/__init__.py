"""Streams over HTTP: an ASGI application on Starlette, which `serving` runs on uvicorn.

`app.create_app` makes the application, also for others to mount. From the bottom up:

    wire       bytes in URLs, JSON, forms and errors; which commands of Redis a request is
    multipart  forms with files
    guard      what every request passes first: Host, Origin, password, sizes
    entries    pages of entries with bounded memory
    events     the event stream: Server-Sent Events that resume
    streams, groups, figures, health    the routes
    openapi    the description of all routes
    app        all of it together
    serving    the server: sockets, time limits, stopping
"""
