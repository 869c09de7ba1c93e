"""Tests of `engine.archive`: entries on their way to segments and back."""
