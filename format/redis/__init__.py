"""Redis's own formats: RDB files, DUMP payloads, commands in RESP.

May import: `format.core`, `format.node`, `format.rows`. `stream_parts` is a whole stream in
parts, as it travels between stores, files and servers.
"""
