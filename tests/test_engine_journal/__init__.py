"""Tests of `engine.journal`."""
