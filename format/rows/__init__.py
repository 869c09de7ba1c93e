"""Rows of the tables: streams, groups, pending entries, idempotency, settings.

May import: `format.core`. Other rooms may use the record types, their encoders and decoders.
"""
