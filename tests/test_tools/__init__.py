"""Tests of `tools`: the command line."""
