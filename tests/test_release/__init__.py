"""Tests of what is published: where it runs, units, a container, the workflow."""
