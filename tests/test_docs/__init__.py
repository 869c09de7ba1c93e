"""Tests of the documentation, the examples and the texts of messages."""
