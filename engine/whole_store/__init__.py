"""Operations on a whole store: erasing, compacting, copying.

May import: `engine.archive`, `engine.store` and the rooms below them. Other rooms may use
`erase.erase`, `compact.compact` and `copying`.
"""
