"""What the tests below `tests/redis` share: a real server to compare with, and its dump format.

It stands outside that folder because a package named `redis` would hide redis-py.
"""
