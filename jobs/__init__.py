"""The durable local queue: tasks that survive their workers, on streams, groups and transactions.

A queue is a few streams and rows of one store; docs/internals/jobs.md says which. Everything that
happens to a job is one transaction, so a crash leaves all of a step or nothing of it.

This folder may use the public API of the engine, and nothing of its rooms.
"""
