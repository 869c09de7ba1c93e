"""One module per Redis command: plain functions of a transaction and checked arguments.

Find a command by its name: XADD is in `xadd`, XINFO in `xinfo`, DEL and RENAME in `keys`, DUMP in
`dump`. `arguments` checks what callers give. May import: `engine.tables`, `txn`, `notify`,
`system`. A function here never begins, commits or waits for a transaction.
"""
