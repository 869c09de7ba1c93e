"""Redis's protocol: connections, what a client may ask of a server, and turns of the event loop.

From the bottom up:

    requests, encoder    bytes to commands, replies to bytes
    turn                 the commands of one turn of the event loop, in one transaction
    turns                clients as turns see them, and when a turn begins
    lock_wait            clients whose next command waits for the write lock
    memory               what clients need in all, and which of them go when it is too much
    blocked, expiry      clients that wait for entries; keys that end at a deadline
    info                 what exporters and people read: INFO, CLIENT LIST
    settings             what CONFIG shows and changes
    client_commands, transactions, server_commands
                         the commands that are not about keys
    connection, server   one client; all of them

May import: `replication`, `commands`, `recovery`, `engine`, `format`.
"""
