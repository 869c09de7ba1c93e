"""The checksum of Redis's payloads."""

from __future__ import annotations

from streamkeep.format.redis.rdb_values import crc64


def test_crc_of_redis() -> None:
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA
    assert crc64(b"56789", crc64(b"1234")) == 0xE9C6D914C4B8D9CA
