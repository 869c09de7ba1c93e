"""Tests of `engine.txn`: transactions, and streams as they see them."""
