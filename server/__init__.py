"""Front ends for the network: Redis's protocol (`resp`), HTTP (`http`), and a page (`page`).

They may use every folder but `tools`, and need the extra `server`.
"""
