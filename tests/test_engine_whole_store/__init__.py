"""Tests of `engine.whole_store`: erasing, and batches of applications."""
