"""Tests of `integrations/django`."""
