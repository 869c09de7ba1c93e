"""The Delta table of entries.

`executor` holds what only tasks run, and `files` serves both sides. All other modules run on the
driver: executors need no delta-rs.
"""
