"""Tests of what the rooms of `integrations/` share."""
