"""The durable local queue: tasks that survive their workers, on streams, groups and transactions.

This folder may use the public API of the engine, and nothing of its rooms.
"""
