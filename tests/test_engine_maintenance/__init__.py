"""Tests of `engine.maintenance`: erasing, and batches of applications."""
