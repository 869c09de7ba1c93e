"""Tests of `release/`: what may be published."""
