"""Front ends for the network: Redis's protocol (`resp`), HTTP (`http`), a page for browsers (`ui`).

`access` says which commands a user may run on which keys, whatever the protocol.
`handshakes` accepts connections with TLS, for both protocols.

They may use every folder but `tools` and `integrations`, and need the extra `server`.
"""
