"""Finding the stores of a fleet. Runs on the driver.

Archives are found by one listing and the head of each. Stores in a folder are opened read-only, one
after the other. A store that is there in both forms is read live, since it then has more.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from uuid import UUID

from streamkeep.engine.remote.object_store import ObjectStore, folder_of, normal_uri, open_objects
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.format.core.errors import StreamkeepError, UnreachableError
from streamkeep.pipeline.source.stores import STORE_FILES, reading
from streamkeep.pipeline.store_fleet.pieces import FleetError, Member

_AT_ONCE: Final = 32


def find_members(
    place: str, problems: list[str] | None = None, headless: list[str] | None = None
) -> list[Member]:
    """Return the stores of a fleet, by UUID.

    Args:
        problems: gets the error of each store that cannot be read, which is left out; without it,
            the first error is raised.
        headless: gets the UUID of each archive without a head, which is left out.

    Raises:
        FleetError: there are none; or two folders are copies of one store.
        UnreachableError: the object store does not answer.
    """
    uri = normal_uri(place)
    found: dict[str, Member] = {}
    if uri.startswith("file://"):
        for member in _live(folder_of(uri), problems):
            other = found.setdefault(member.store, member)
            if other is not member:
                raise FleetError(
                    f"{other.path} and {member.path} are copies of one store ({member.store}), and "
                    "a lake could not tell their entries apart; next: move one of them away"
                )
    objects = open_objects(uri)
    names = [name for name in objects.folders() if _is_uuid(name) and name not in found]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        archived = threads.map(lambda name: _archived(objects, uri, name), names)
        for name, one in zip(names, archived, strict=True):
            if isinstance(one, Member):
                found[one.store] = one
            elif one is not None:
                _note(one, problems)
            elif headless is not None:
                headless.append(name)
    if not found and not problems:
        raise FleetError(
            f"{place}: no archives of stores and no stores are there; next: `streamkeep archive "
            "run STORE --to URI` puts one there"
        )
    return [found[store] for store in sorted(found)]


def _live(folder: Path, problems: list[str] | None) -> Iterator[Member]:
    """Yield the stores in a folder, and the folder itself if it is one."""
    if not folder.is_dir():
        return
    for path in [folder, *sorted(folder.iterdir())]:
        if not any(_may_be_there(path / name) for name in STORE_FILES):
            continue
        try:
            member = live_member(path)
        except StreamkeepError as error:
            _note(error, problems)
        else:
            yield member


def _may_be_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # such as no permission; `live_member` says so
    return True


def live_member(path: Path) -> Member:
    with reading(path) as store:
        setting = store.remote_archive()
        name = path.name if setting is None else setting.name
        labels = {} if setting is None else setting.labels
        uri = "" if setting is None else setting.uri
        return Member(store.uuid, name, labels, uri, str(path))


def _note(error: StreamkeepError, problems: list[str] | None) -> None:
    if problems is None:
        raise error
    problems.append(f"a store is left out: {error}")


def _archived(objects: ObjectStore, uri: str, name: str) -> Member | StreamkeepError | None:
    """Return an archived store, the error of its head, or None if it has no head yet."""
    try:
        head = RemoteArchive(objects, name).head()
    except UnreachableError:
        raise
    except StreamkeepError as error:
        return error
    return None if head is None else Member.archived(head, uri)


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
