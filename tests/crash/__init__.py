"""Crashes and power losses."""
