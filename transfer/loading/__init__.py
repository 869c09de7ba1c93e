"""Files into a store: whole streams (`whole`, staged by `staged`), or rows of one (`append`).

`source_file` opens files; the other modules read one format each, a line or a row at a time. May
import `engine`, `format`, and of `transfer` only `formats`, `progress` and `stores`. Used by
`transfer.load_file`.
"""
