"""The engine: every command of Redis Streams on one LMDB environment.

Rooms, from the lowest up; each may import `format` and the rooms named before it (`api` also
`arrow`):

    system          files, clock, boot ID, failpoints, LMDB's errors
    remote          archives in object stores
    journal         what each commit changed, and the sync that makes it durable
    notify          which readers wait for which stream, and how a commit wakes them
    liveness        which processes that consume are alive
    txn             transactions, the context that they share, rows kept decoded
    checkpoint      the state on disk that recovery goes back to
    crash_recovery  recovery at the opening of a store, after a crash or a power loss
    tables          streams and groups as nodes, pages and counters inside a transaction
    commands        one module per Redis command: plain functions of a transaction
    blocking        calls that wait for entries
    store           the open environment: opening, group commit, growth, limits
    archive         trimmed entries in segment files, and back
    whole_store     erasing, compacting, copying
    feed            the changes of streams, commit by commit
    api             the public classes: Store, Transaction, Snapshot, Pipeline, AsyncStore
"""
