"""Archives in object stores, where other programs may read them.

`object_store` puts, lists and reads objects of a bucket or a folder, and `remote_archive` is the
published archive of one store there. May import: `engine.system`, `format`. Other rooms may use
every public name.
"""
