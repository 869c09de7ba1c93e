"""Calls that wait for entries: XREAD and XREADGROUP with BLOCK.

`calls` describes what a call waits for, `waiters` sleeps and wakes for threads, `async_waiters` for
asyncio. May import: `engine.commands` and what is below. For the rest: `Waiters`, `BlockingCall`
and its kinds.
"""
