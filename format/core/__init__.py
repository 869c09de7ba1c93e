"""Shared by all formats: errors, entry IDs, keys of tables, checksums, byte tables.

May import: no other room. Other rooms may use every public name.
"""
