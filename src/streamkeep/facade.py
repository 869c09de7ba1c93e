"""`streamkeep.open`: where a store begins.

`Store` declares the options. Type checkers read `facade.pyi`, which
`scripts/stubs.py` makes of them.
"""

from inspect import signature

from streamkeep import supported
from streamkeep.engine.api.store import Store


def open(path, **options):
    """Open the store in the directory `path`, creating it when there is none.

    Args:
        sync: when a writing call returns. "commit": when its change is on disk. "interval" and
            "none": when it is committed. Then a crash of the process loses nothing; a power cut
            loses at most the last interval, or everything since the last checkpoint.
            `store.using` and `store.transaction` take another mode; processes may differ.
        interval: how often "interval" syncs: seconds, a timedelta, or a text such as "100ms".
        readonly: open without write access, also on read-only media. Does not create a store.
        read_durable: reads return when what they saw is on disk. Otherwise they may see commits
            that a power cut can still take away. Not with `readonly`, because it may have to sync.
        force_recovery: open a store although commits are lost that no power loss explains, as
            where its journal is damaged. "data.mdb" goes on from the newest commit in the data
            file, "checkpoint" from the last one that is known to be on disk whole; each replays
            what can be read of the journal after it. `durability().last_recovery` counts the
            commits that were lost. `repair` may save some of them.
        create: create a missing store; otherwise raise NotAStoreError.
        decode_responses: return str instead of bytes, decoded from UTF-8, as in redis-py: also with
            its UnicodeDecodeError for what is not UTF-8, such as one key among those of `keys`.
        max_readers: reader slots shared by all processes. Raised only while no other process has
            the store open; never lowered.
        max_store_bytes: limit of what the data file holds, 1 MiB or more; None for no limit. At
            the limit, appends raise StoreFullError, and deleting still works. The file may take an
            eighth more, or a megabyte, for pages that will be reused, and what deletions write
            while snapshots keep these.
        node_max_bytes, node_max_entries: limits of the macro nodes of streams that are created from
            now on, by Redis's rule (stream-node-max-bytes, -entries). If only one is given, the
            other is 4,096 or 100; one of them may be 0: no limit. None for both: nodes fill pages.
        archive_every: maintain and archive the store at this interval, such as "1m", in a thread,
            as `Store.maintain` and `Store.archive` do.
        retired_max_bytes: bytes of trimmed entries that may wait for the archiver, 64 MiB or more;
            None for 1 GiB. Beyond it, calls that trim archive themselves.
        trust_owners: more users, by name or number, whose files the store may consist of. Trusted
            without it are the caller, root, the members of the group that shares the store, and
            the users that the environment variable STREAMKEEP_TRUST_OWNERS names.
        mode: the mode of the files of a store that is created, such as 0o660 for one that a group
            shares. Folders can also be entered, and give their group to new files. None for what
            the umask allows. Any later file gets the same mode, from each user.
        group: the group of the files of a store that is created, by name or number; the mode is
            then 0o660 unless it is given. None for the group of the folder.
        lease: entries are delivered under a lease of this process, so that others can take them
            over as soon as it dies or closes the store (`claim_dead`). False for a process that
            consumes for others, such as a server, or for a later process, such as a script's
            command: what it delivers can then only be claimed by idle time.

    Raises:
        UntrustedFileError: a file of the store is a link, has a wrong type or a second name, or
            belongs to a user that is not trusted; nothing was changed.
        NotAStoreError: the path holds something else, which was not changed.
        FormatVersionError: a newer version wrote the store, which was not changed.
        StoreError: no permission, no file locks, or open in this process with other options.
        RecoveryNeededError: `readonly`, and the store needs recovery after a power cut. Or a
            recovery would lose commits that no power cut explains; nothing was changed, and
            `force_recovery` says how to go on.
        StoreLockedError: another process is recovering the store; or this call must recover it
            while it is open elsewhere; or one of two processes may not write `lock.mdb`.
        CorruptionError: the disk has lost data that it had confirmed, or the data file was cut off.
    """
    supported.warn_if_interpreted()
    return Store(path, **options)


_parameters = [one for one in signature(Store).parameters.values() if one.name != "clock"]
open.__signature__ = signature(Store).replace(parameters=_parameters, return_annotation=Store)
