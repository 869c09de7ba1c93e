"""Tests of `engine.admin`: erasing, and batches of applications."""
