"""Copies of a store elsewhere: `piece` has the objects with commits and rows, `head` the first one.

May import: `format.core`, `format.journal`.
"""
