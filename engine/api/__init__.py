"""The public classes: `Store`, the views that it returns, and their counterparts for asyncio.

`command_base` says how a method becomes a command that a class runs. `stream_commands` combines the
methods with redis-py's names, which the other files of commands have by subject. `admin_commands`
has the methods on files, and `follow` the endless reads. May import: all rooms of the engine. The
rest uses the classes that `streamkeep` exports.
"""
