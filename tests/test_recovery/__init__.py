"""Tests of `recovery`: every damage is found and repaired."""
