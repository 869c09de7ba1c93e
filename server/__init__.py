"""Front ends for the network: Redis's protocol (`resp`), HTTP (`http`), and a page (`page`).

`commands` has Redis's commands in Redis's words, as functions of a transaction.

They may use every folder but `tools`, and need the extra `server`.
"""
