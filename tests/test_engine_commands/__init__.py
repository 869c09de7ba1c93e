"""Tests of `engine.commands`: single commands where Redis says little."""
