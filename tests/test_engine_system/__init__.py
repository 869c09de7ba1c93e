"""Tests of `engine.system`: files, locks and errors of the system."""
