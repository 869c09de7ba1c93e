"""The figures of a store: rates, lag, pending entries, queues, disk, syncs.

Every front end (command line, server, queue) shows what this folder computes. It may use the
engine, the recovery tools and the queue.
"""
