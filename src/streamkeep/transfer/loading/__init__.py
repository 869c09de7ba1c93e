"""Files into a store: whole streams (`whole`, staged by `staged`), or rows of one (`append`).

`tables` and `jsonl` read the formats, a line or a row at a time. May import `engine`, `format`, and
of `transfer` only `formats` and `stores`. Used by `transfer.load_file`.
"""
