"""Redis's commands in Redis's own words: a list of words in, a reply out, in one transaction.

`command_table` has every command with what Redis's COMMAND says of it. Each function takes a
transaction of the engine, the words, and the shape of entries; it returns one of the values of
`replies`, or raises CommandError with the line of Redis. The order of checks is that of Redis.
Nothing here knows of sockets or clients: `streamkeep exec` runs the same functions. May import:
`engine`, `format`.
"""
