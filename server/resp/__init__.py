"""Redis's protocol: connections, what a client may ask of a server, and turns of the event loop.

`requests` parses what clients send, `encoder` writes replies, `turn` runs the commands of one turn
of the event loop in one transaction. May import: `server.commands`, `recovery`, `engine`, `format`.
"""
