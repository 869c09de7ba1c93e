"""Commands of Redis's append-only files, applied to a store.

`replay` runs them in batches, `any_key` and `streams` say what each of them does. May import
`engine`, `format`, and of `transfer` `stores` and `loading`. Used by `transfer.load_file`.
"""
