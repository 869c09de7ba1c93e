"""What every other format needs: errors, entry IDs, keys of tables, checksums, byte tables.

May import: nothing of ours. For the rest: every public name.
"""
