"""Redis's own words on a store, for `streamkeep exec`.

`arguments` reads the words of a command, `commands` and `group_commands` turn them into calls of
the store, `replies` prints what redis-cli prints. May import: `tools.base`, `engine`, `format`.
Used by the command `exec`.
"""
