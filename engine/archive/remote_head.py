"""The head and the manifest of an archive under a URI: what is there, and writing the next ones."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from functools import partial

from streamkeep.engine.remote.object_store import put_bytes
from streamkeep.engine.remote.remote_archive import RemoteArchive, check_checksums
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables.manifest import put_published
from streamkeep.format.core.errors import CorruptionError, StoreError
from streamkeep.format.segment import remote
from streamkeep.format.segment.manifest import ARCHIVED, record_of
from streamkeep.format.segment.segment import Segment

log = logging.getLogger("streamkeep")


class RemoteHead:
    """The head of a store during one publication; the caller has the archive's lock."""

    def __init__(
        self,
        environment: Environment,
        archive: RemoteArchive,
        noted: remote.RemoteSetting | None,
        setting: remote.RemoteSetting,
    ) -> None:
        """Take what the store has noted, and the setting under which it publishes now."""
        self.environment = environment
        self.remote = archive
        self.noted = noted
        self.setting = setting

    def check(self, head: remote.Head | None) -> None:
        """Raise if another copy of this store wrote the head."""
        if head is not None and head.version > self.setting.version:
            raise StoreError(
                f"{self.remote.uri}: version {head.version} of this archive is there, and this "
                f"store has written up to version {self.setting.version}: another copy of the "
                "store publishes to the same URI, this one is a restored backup, or its archive "
                "was there before it moved; next: give it another URI (archive run --to)"
            )
        if head is None and self.setting.version:
            log.warning("%s: the archive is no longer there; writing it again", self.remote.uri)
        elif head is not None and head.version + 1 < self.setting.version:
            log.warning(
                "%s: version %d is there, expected %d: the object store has lost a write, or "
                "answers with an old state; writing again",
                self.remote.uri,
                head.version,
                self.setting.version,
            )

    def manifest_before(self, head: remote.Head | None) -> tuple[int, remote.Manifest]:
        """Return the manifest of a head, or the newest one that this store has noted without it.

        Its version is before it. If both are lost, what sealed segments are there. What a first
        publication has left that was killed before it noted a manifest does not count: entries in
        it may have been removed since.
        """
        try:
            if head is not None:
                return head.version, self.remote.manifest(head)
            last = self.remote.name(remote.manifest_name(self.setting.version + 1, ""))
            name = max((one for one in self.manifests() if one < last), default=None)
            if name is not None:  # killed before the head, or it is lost
                manifest = remote.decode_manifest(self.remote.objects.get(name), name)
                return remote.version_of(name), manifest
        except (FileNotFoundError, CorruptionError) as error:
            log.warning("%s: the manifest is lost, making another: %s", self.remote.uri, error)
        first = not self.manifests() if self.noted is None else self.noted.version == 0
        found = [] if first else self._find_sealed()
        version = 0 if head is None else head.version
        return version, remote.Manifest({}, remote.in_order(iter(found)))

    def manifests(self) -> list[str]:
        return self.remote.objects.names(self.remote.name(remote.MANIFESTS))

    def _find_sealed(self) -> list[remote.RemoteSegment]:
        """Return the sound sealed segments that are there; each may have the only copy of entries.

        Those within another one are left out: it has replaced them.
        """
        objects, found = self.remote.objects, []
        top = self.remote.name(f"{remote.SEALED}/")
        for name in objects.names(self.remote.name(remote.SEALED)):
            size = objects.size(name)
            if size is None:
                continue
            try:
                segment = Segment.open(partial(objects.read, name), size, f"segment {name}")
                check_checksums(segment)
            except (CorruptionError, FileNotFoundError) as error:
                log.warning("%s: %s is left out: %s", self.remote.uri, name, error)
                continue
            if segment.index.store_uuid == self.environment.uuid.bytes:
                record = record_of(segment, name.removeprefix(top), ARCHIVED)
                found.append(remote.RemoteSegment(record, True))
        return [one for one in found if not any(_is_within(one, other) for other in found)]

    def write(
        self,
        manifest: remote.Manifest,
        before: remote.Head | None,
        sealed_ms: int | None,
        removed: Sequence[remote.Removed],
    ) -> remote.Head:
        """Write the next manifest and head; each is read back.

        Args:
            removed: noted ranges, which the manifest lacks.
        """
        highest = max(self.setting.version, 0 if before is None else before.version)
        data = remote.encode_manifest(manifest)
        records = [one.record for one in manifest.segments]
        head = remote.Head(
            self.environment.uuid,
            self.setting.name,
            self.setting.labels,
            highest + 1,
            remote.manifest_name(highest + 1, secrets.token_hex(4)),
            len(data),
            remote.checksum_of(data),
            len(records),
            sum(one.entries for one in records),
            sum(one.size_bytes for one in records),
            self.environment.context.clock.now_ms(),
            sealed_ms,
        )
        self.setting = self.setting._replace(version=head.version)
        if before is None:  # then the newest manifest counts, and none that was never noted may
            for name in self.manifests():
                if name > self.remote.name(remote.manifest_name(head.version, "")):
                    self.remote.objects.remove(name)
        self._put_checked(head.manifest, data)
        failpoints.hit("publish:manifest")
        # From here on segments may be only there, and objects that the manifest does not name go.
        # So a checkpoint covers the setting and the manifest; see `garbage`.
        self.environment.write(put_published, self.setting, removed, frees=True)
        self.environment.make_checkpoint(strict=True)
        failpoints.hit("publish:noted")
        self._put_checked(remote.HEAD, head.encode())
        failpoints.hit("publish:head")
        return head

    def _put_checked(self, name: str, data: bytes) -> None:
        """Write an object and read it back.

        Raises:
            CorruptionError: the object store returned something else.
        """
        objects, name = self.remote.objects, self.remote.name(name)
        put_bytes(objects, name, data)
        try:
            found = objects.get(name)
        except FileNotFoundError:
            found = None
        if found != data:
            what = "nothing" if found is None else f"{len(found)} other bytes"
            raise CorruptionError(
                f"{objects.uri}/{name}",
                f"it was written and confirmed, but reading it back returns {what}; nothing was "
                "removed here; next: repeat the command, and check the object store",
            )


def _is_within(one: remote.RemoteSegment, other: remote.RemoteSegment) -> bool:
    """Return whether another segment replaced one: a larger one of the same stream, around it."""
    small, large = one.record, other.record
    return (
        small.path != large.path
        and small.stream_number == large.stream_number
        and large.first_id <= small.first_id
        and small.last_id <= large.last_id
        and (small.entries, small.created_ms) < (large.entries, large.created_ms)
    )
