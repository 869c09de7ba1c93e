"""Tests of what `scripts/` has: tools of the development."""
