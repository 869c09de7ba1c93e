"""How a commit wakes the readers that wait for it, across threads and processes.

`wait_table` is a shared file with a row per waiting reader; `notifier` wakes one of them through a
named pipe. Nothing here knows a transaction. May import: `engine.system`, `format`.
For the rest: `WaitTable` and its events, `Bell`, `Notifier`.
"""
