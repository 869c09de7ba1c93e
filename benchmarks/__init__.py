"""Throughput, latency and size, side by side in one run; see `python -m benchmarks --help`."""
