"""Transactions on LMDB, and what all transactions of a process share.

`txn` has the read and the write transaction, `context.EngineContext` their locks and caches,
`stream.Stream` the decoded row that most commands work on, `page_memory` what LMDB keeps in memory.
May import: `engine.system`, `journal`, `notify`, `liveness`. For the rest: `ReadTxn`, `WriteTxn`,
`Txn`, `EngineContext`, `Stream`.
"""
