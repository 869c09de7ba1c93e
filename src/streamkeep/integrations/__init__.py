"""Adapters: Streamkeep where people already are, each in a room with the name of its peer.

Each room needs the extra of its name, and says so in its error where that is not installed. A room
uses the public API of the engine, the queue, and parts of the server; no other folder imports it,
and rooms do not know each other.

This `__init__` imports nothing, so that a room loads without the peers of the others.
"""
