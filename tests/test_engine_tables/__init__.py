"""Tests of `engine.tables`: streams, groups and segments as rows."""
