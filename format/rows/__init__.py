"""Rows of the tables: streams, groups, pending entries, idempotency, settings.

The modules have the values; the keys of all tables are in `format.core.keys`. May import:
`format.core`. Other rooms may use the record types, their encoders and decoders.
"""
