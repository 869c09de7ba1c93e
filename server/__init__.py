"""Front ends for the network: Redis's protocol (`resp`), HTTP (`http`), a page for browsers (`ui`).

`commands` has Redis's commands in Redis's words, as functions of a transaction.

They may use every folder but `tools` and `integrations`, and need the extra `server`.
"""
