"""Tests of `transfer`: dump and load as a library."""
