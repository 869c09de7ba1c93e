"""Bytes to values and back: pure functions, no input or output, no clock, no LMDB."""
