"""Files into a store: whole streams (`whole`), under temporary names until all is there (`staged`).

`tables` and `jsonl` read the formats, a line or a row at a time. May import `engine`, `format`, and
of `transfer` only `formats` and `stores`. Used by `transfer.load_file`.
"""
