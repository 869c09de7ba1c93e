"""Rows of the tables: streams, groups, pending entries, idempotence, settings.

May import: `format.core`. For the rest: the record types and their encoders and decoders.
"""
