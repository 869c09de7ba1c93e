"""Tests of `engine.store` and `engine.txn`: opening, sharing, limits, memory."""
