"""Work on a store as a whole: erasing for good, compacting, copying, batches of pipelines.

May import: `engine.archive`, `engine.store` and what is below. For the rest: `erase.erase`,
`compact.compact`, `copying`, `batches`.
"""
