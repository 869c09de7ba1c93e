"""Tests of `engine.checkpoint`."""
