"""Backups: a copy of a store in use, as of one commit, complete or not there at all.

May import: `recovery.fsck`, `engine`, `format`. For the rest: `backup.backup`, `BackupReport`.
"""
