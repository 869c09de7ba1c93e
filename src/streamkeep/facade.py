"""`streamkeep.open`: where a store begins.

`Store` declares the options. Type checkers read `facade.pyi`, which `make docs` makes of them.
"""

from inspect import signature

from streamkeep.engine.api.store import Store


def open(path, **options):
    """Open the store in the directory `path`, creating it when there is none.

    Args:
        sync: when a writing call returns. "commit": when its change is on disk. "interval" and
            "none": when it is committed; a crash of the process loses nothing, a power cut at most
            the last interval, or all since the last checkpoint. `store.using` and
            `store.transaction` take another mode for one call; processes may differ.
        interval_ms: how often "interval" syncs, in milliseconds.
        readonly: open without write access; works on read-only media. Implies not creating.
        read_durable: reads return when what they saw is on disk; otherwise they may see commits
            that a power cut would still take away. Not with readonly: it may have to sync.
        force_recovery: recover as after a power loss although the machine has not been booted: for
            a disk that was torn off.
        create: make the store when it does not exist; otherwise NotAStoreError.
        decode_responses: return str instead of bytes, decoded from UTF-8, as in redis-py.
        max_readers: how many readers, of all processes, the store has slots for. Who opens it alone
            can raise that; it is never lowered.
        max_store_bytes: limit of what the store's data file holds, 1 MiB or more; None for none.
            At it, appends raise StoreFullError, and deleting still works. The file itself may take
            an eighth more, or a megabyte, for pages that are to be reused; where snapshots keep all
            of these, deleting waits for them for ten seconds.
        node_max_bytes, node_max_entries: limits of the macro nodes of streams that are created from
            now on, by Redis's rule (stream-node-max-bytes, -entries; 4,096 and 100 where only the
            other is given, 0 for no limit). None for ours: nodes fill pages.
        archive_every: maintain and archive the store every so many seconds, in a thread of its
            own; as `Store.maintain` and `Store.archive` do when they are called.
        retired_max_bytes: what trimmed entries may take while they wait for the archiver, 64 MiB
            or more; None for 1 GiB. Beyond it, the calls that trim archive themselves.
        trust_owners: users, by name or number, whose files the store may consist of, besides the
            caller's, root's, and in a store that a group shares, those of its members; so are
            those that the environment variable STREAMKEEP_TRUST_OWNERS names.

    Raises:
        UntrustedFileError: a file of the store is a link, of another type, has a second name that
            a write would change, too, or belongs to a user who is not trusted; nothing was touched.
        NotAStoreError: the path holds something else; it is untouched.
        FormatVersionError: written by a newer version; it is untouched.
        StoreError: no permission, no file locks, or open in this process with other options.
        RecoveryNeededError: read-only, and the store was left by a power cut.
        StoreLockedError: another process is recovering the store; or this is to recover one that is
            open; or one of two processes may not write `lock.mdb`.
        CorruptionError: recovery found that the disk has lost what it had confirmed, or the data
            file was cut off.
    """
    return Store(path, **options)


_parameters = [one for one in signature(Store).parameters.values() if one.name != "clock"]
open.__signature__ = signature(Store).replace(parameters=_parameters, return_annotation=Store)
