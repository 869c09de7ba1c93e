"""Tests of `engine.liveness`: which processes that consume are alive."""
