"""The public classes: `Store` and what it gives out, and their asyncio twins.

`stream_commands` and `group_commands` have the methods with redis-py's names, `archive_commands`
the archive's; `store` runs them on an environment, `views` in a transaction, a snapshot or with
another sync mode. May import: all rooms of the engine. For the rest: the classes that
`streamkeep` exports.
"""
