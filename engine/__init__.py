"""The engine: one LMDB transaction at a time, and every command of Redis Streams in terms of it."""
