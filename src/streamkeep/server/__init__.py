"""Front ends for the network: Redis's protocol (`resp`), HTTP (`http`), a page for browsers (`ui`).

`replicas` sends the changes of the store to servers that replicate it.
`commands` has Redis's commands in Redis's words, as functions of a transaction. `access` says which
of them a user may run on which keys, whatever the protocol.

They may use every folder but `tools` and `integrations`, and need the extra `server`.
"""
