"""Tests of `engine.model`: streams, groups and segments as rows."""
