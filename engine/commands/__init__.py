"""Redis's commands: plain functions of a transaction and checked arguments.

Find a command by its name: XADD is in `xadd`, XINFO in `xinfo`, XNACK in `xack`, DEL and RENAME in
`keys`, DUMP in `dump`. `history` reads nodes and segments as one stream. `arguments` checks what
callers give. May import: `engine.tables`, `txn`, `notify`, `liveness`, `system`. A function here
never begins, commits or waits for a transaction.
"""
