"""Tests of `integrations/sqlalchemy`."""
