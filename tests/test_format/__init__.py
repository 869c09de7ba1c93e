"""Tests of `format`: bytes of real servers, round trips, every flipped bit, hostile input."""
