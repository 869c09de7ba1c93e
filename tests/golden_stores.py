"""Golden stores: unpacked, described in a form that outlives formats and methods, and digested."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, Final

import zstandard

from streamkeep.engine.api.store import Store

FOLDER: Final = Path(__file__).parent / "golden" / "stores"
NAMES: Final = ("closed", "killed", "torn")  # of format 1


def unpack(name: str, target: Path) -> Path:
    """Unpack a golden store below `target`; return the store's folder."""
    packed = (FOLDER / f"{name}.tar.zst").read_bytes()
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        tar.extractall(target)
    return target / "store"


def pack(folder: Path, target: Path) -> None:
    """Write a store's folder into a compressed archive that tells nothing of this machine."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if info.isfifo():
            return None
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(folder, "store", filter=plain)
    target.write_bytes(zstandard.compress(packed.getvalue(), 19))


def describe(store: Store[bytes]) -> dict[str, Any]:
    """Return what a store holds, for JSON: bytes as latin-1 text, IDs and names included.

    Only what the commands of Redis and the archive show, so that every format that holds the same
    streams gives the same answer.
    """
    found: dict[str, Any] = {}
    for key in store.scan_iter():
        full = store.xinfo_stream(key, full=True, count=0)
        for name in ("radix-tree-keys", "radix-tree-nodes"):  # how it is packed
            full.pop(name, None)
        retention = store.retention(key)
        found[key.decode("latin-1")] = {
            "info": _plain(full),
            "history": _plain(store.xrange(key, history=True)),
            "retention": _plain(retention._asdict()),
        }
    archived = sorted(
        (one.key.decode("latin-1"), one.exists, one.entries, one.retired_entries)
        for one in store.archived_streams()
    )
    return {"streams": found, "archive": [list(one) for one in archived]}


def digest(found: dict[str, Any]) -> str:
    """Return the digest of a description, as `digests.json` has it for each golden store."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {_plain(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
