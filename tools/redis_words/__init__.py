"""Replies of Redis's commands as text and JSON, for `streamkeep exec`.

The commands themselves are in `server.commands`. May import: `tools.base`, `server.commands`. Used
by the command `exec`.
"""
