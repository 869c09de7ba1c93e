"""Backups: copies of a store in use, each as of one commit.

May import: `recovery.fsck`, `engine`, `format`. Other rooms may use `backup.backup` and
`BackupReport`.
"""
