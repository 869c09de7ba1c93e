"""The same commands to a real redis-server; skipped where there is none."""
