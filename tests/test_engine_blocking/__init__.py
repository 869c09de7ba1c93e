"""Tests of `engine.blocking` and `engine.notify`: reads that wait for entries."""
