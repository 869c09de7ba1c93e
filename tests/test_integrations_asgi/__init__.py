"""Tests of `integrations/asgi`."""
