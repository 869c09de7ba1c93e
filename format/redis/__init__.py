"""Redis's own formats: RDB files, DUMP payloads, commands in RESP.

Listpacks are in `format.node`, since entries are stored as such. `stream_parts` has the types in
which a whole stream is transferred between stores, files and servers.

May import: `format.core`, `format.node`, `format.rows`.
"""
