"""A store that changes at random, and what its readers were promised: a model of its streams.

`Life` has one stream for each number, which stays when the key is renamed, with its live entries
and its history, as `test_properties.test_archive` models both. Beside that it knows what is gone,
which is deleted by ID or erased, and what is lost, which is trimmed and in no archive.
"""

from __future__ import annotations

import random
from typing import Any, Final

from streamkeep.engine.api.store import Store
from test_properties.test_archive import Id, Model, text

KEYS: Final = ("a", "b", "c")
Row = tuple[int, Id]  # number of the stream, and ID
Rows = dict[Row, bytes]  # with the value of the only field


class Life:
    """The store and its model.

    Args:
        deletes: also delete and erase single entries, of which the store does not record which.
    """

    def __init__(self, store: Store[bytes], rng: random.Random, *, deletes: bool) -> None:
        self.store, self.rng, self.deletes = store, rng, deletes
        self.keys: dict[str, int] = {}  # the streams that are there
        self.models: dict[int, Model] = {}  # all that ever were
        self.added: Rows = {}
        self.gone: set[Row] = set()
        self.frozen = False
        self.lost: set[Row] = set()
        self.ended: set[int] = set()  # streams that were deleted
        self.never: set[str] = set()
        self.next_ms = 1000
        self.log: list[Any] = []

    def step(self) -> None:
        """Change the store in one way, and the model with it."""
        if self.frozen:
            return
        ways = [self.add] * 6 + [self.trim] * 3 + [self.archive, self.make, self.rename]
        ways += [self.delete] if self.rng.random() < 0.3 else []
        ways += [self.drop] if self.rng.random() < 0.3 else []
        ways += [self.xdel, self.xdel, self.erase] if self.deletes else []
        ways = [one for one in ways if one.__name__ not in self.never]
        way = self.rng.choice(ways if self.keys else [self.make])
        self.log.append(way.__name__)
        way()

    def steps(self, most: int) -> None:
        for _ in range(self.rng.randrange(most + 1)):
            self.step()

    def some(self) -> tuple[str, int, Model]:
        key = self.rng.choice(sorted(self.keys))
        return key, self.keys[key], self.models[self.keys[key]]

    def make(self) -> None:
        key = self.rng.choice(KEYS)
        if key not in self.keys:
            archiving = self.rng.random() < 0.5
            self.store.xgroup_create(key, "g", mkstream=True)
            self.store.set_retention(key, archive=archiving)
            with self.store.snapshot() as snapshot:
                stream = snapshot.txn.find_stream(key.encode())
                assert stream is not None
            self.keys[key] = stream.number
            self.models[stream.number] = Model()
            self.models[stream.number].archiving = archiving
        self.add(key)

    def add(self, key: str | None = None) -> None:
        key = key or self.some()[0]
        model, number = self.models[self.keys[key]], self.keys[key]
        ids: list[Id] = []
        for _ in range(self.rng.choice((1, 3, 40))):
            self.next_ms += self.rng.randrange(2)
            ids.append((self.next_ms, self.rng.randrange(3) + 3 * len(ids)))
        self.next_ms += 1
        values = [b"%d:%d-%d" % (number, *one) for one in ids]
        self.store.xadd_many(key, [{"n": one} for one in values], ids=[text(one) for one in ids])
        self.added |= {(number, one): value for one, value in zip(ids, values, strict=True)}
        model.live |= zip(ids, values, strict=True)
        model.history |= zip(ids, values, strict=True)

    def trim(self) -> None:
        key, number, model = self.some()
        exact = not self.deletes and self.rng.random() < 0.5  # else it may look like a deletion
        maxlen = self.rng.randrange(len(model.live) + 2)
        maxlen = self.rng.choice((0, maxlen, maxlen))
        count = self.store.xtrim(key, maxlen=maxlen, approximate=not exact)
        ids = list(model.live)[:count]
        if not model.archiving:
            self.lost.update((number, one) for one in ids)
        model.trim(ids)

    def archive(self) -> None:
        self.store.archive()

    def drop(self) -> None:
        _, number, model = self.some()
        if not self.store.archived_segments(stream_number=number):
            return
        before = self.rng.choice([text(one) for one in model.history] or ["+"])
        for one in self.store.drop_segments(stream_number=number, before=before):
            for found in [i for i in model.history if one.first_id <= i <= one.last_id]:
                del model.history[found]
                self.lost.add((number, found))

    def rename(self) -> None:
        key = self.some()[0]
        to = self.rng.choice(KEYS)
        if to != key:
            self.store.rename(key, to)
            if to in self.keys:
                self.ended.add(self.keys[to])
            self.keys[to] = self.keys.pop(key)

    def delete(self) -> None:
        key = self.some()[0]
        self.store.delete(key)
        self.ended.add(self.keys.pop(key))

    def xdel(self) -> None:
        key, number, model = self.some()
        ids = self.rng.sample(list(model.live), min(len(model.live), self.rng.choice((1, 4))))
        if ids:
            self.store.xdel(key, *(text(one) for one in ids))
            model.delete(ids)
            self.gone.update((number, one) for one in ids)

    def erase(self) -> None:
        key, number, model = self.some()
        ids = self.rng.sample(list(model.history), min(len(model.history), 2))
        if ids:
            self.store.erase(key, *(text(one) for one in ids))
            model.erase(ids)
            self.gone.update((number, one) for one in ids)

    def rows(self, source: str = "auto") -> Rows:
        """Return all entries of the streams that are there."""
        return {
            (number, one): value
            for number in self.keys.values()
            for one, value in self._of(number, source).items()
        }

    def _of(self, number: int, source: str) -> dict[Id, bytes]:
        model = self.models[number]
        if source == "archive":
            segments = self.store.archived_segments(stream_number=number)
            ends = [(one.first_id, one.last_id) for one in segments]
            return {
                one: value
                for one, value in model.history.items()
                if any(first <= one <= last for first, last in ends)
            }
        return model.live if source == "live" else model.history
