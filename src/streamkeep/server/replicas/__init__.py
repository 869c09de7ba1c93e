"""Feeding replicas: a Redis, a Valkey or another Streamkeep that copies what this store has.

`changes` learns from the journal which rows commits have changed, `steps` writes the difference of
two snapshots as commands of Redis, and `primary` sends them. Imports no module of `server.resp`.
"""
