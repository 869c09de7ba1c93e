"""Many stores as one source: finding them, and what of each is new.

A fleet's URI holds the archives of stores, each below its UUID, or folders of stores, or both. The
folder `executor` holds what only tasks run; `pieces` and `progress_files` serve both sides. The
other modules run on the driver.
"""
