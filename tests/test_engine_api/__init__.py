"""Tests of `engine.api`: what the public classes answer beyond what the model covers."""
