"""Calls that wait for entries: XREAD and XREADGROUP with BLOCK.

`calls` describes what a call waits for. `waiters` lets threads sleep and wakes them, and
`async_waiters` does so for asyncio. May import: `engine.commands` and the rooms below. The rest
uses `Waiters`, and `BlockingCall` with its kinds.
"""
