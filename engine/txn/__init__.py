"""Transactions on LMDB, and what all transactions of a process share.

`txn` has the read and the write transaction, `context.EngineContext` their locks and caches,
`memtable` the rows of the newest commits; `flush` puts them into LMDB. `stream.Stream` is the
decoded row that most commands work on, `page_memory` is about what LMDB keeps in memory. May
import: `engine.system`, `journal`, `notify`, `liveness`. For the rest: `ReadTxn`, `WriteTxn`,
`Txn`, `EngineContext`, `Stream`.
"""
