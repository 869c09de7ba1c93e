"""Tests of `engine.leases`: which processes that consume are alive."""
