"""Commands on a whole store: create, fsck, repair, backup, restore, compact."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import click

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.format.humanize import count_text, size_text
from streamkeep.recovery.fsck.findings import CATALOGUE, Finding, Progress, Severity
from streamkeep.tools.base import arguments, common, output
from streamkeep.tools.base.arguments import Parsed, StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Exit, Failure


def _octal(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise ValueError(f"{text!r} is not a mode in octal digits, such as 660") from None


@command()
def create(
    store_path: StorePath,
    mode: Annotated[int, Parsed("mode", _octal)] | None = None,
    group: str | None = None,
) -> None:
    """Create the empty store STORE, with a mode and a group.

    Commands that write create a missing store, too: then the umask decides which users may use it.
    Each file that is made later gets the same mode and group, from each user. In a group with the
    mode 660, all members can read and write. Readers need the right to write, too, as long as
    others write: LMDB notes them in its lock file.

    Examples:
      streamkeep create shared.store --mode 660
      streamkeep create private.store --mode 600

    Args:
        mode: Mode of all files, such as 660 or 600.
        group: Group of all files, by name or number; the mode is then 660.
    """
    import streamkeep

    if (store_path / DATA_FILE).exists():
        hint = f"chmod -R and chgrp -R change who may use it: see the files in {store_path}"
        raise Failure(f"{store_path}: there is a store already", hint=hint, status=Exit.UNREADABLE)
    with streamkeep.open(store_path, mode=mode, group=group) as store:
        identity = store.uuid
    status = (store_path / DATA_FILE).stat()
    shown = f"{status.st_mode & 0o777:o}"
    text = f"{store_path}: created; its files have the mode {shown}"
    output.result(text, path=str(store_path), uuid=identity, mode=shown, group=status.st_gid)


@command()
def fsck(
    store_path: StorePath | None = None,
    quick: bool = False,
    key: bytes | None = None,
    code: str | None = None,
) -> None:
    """Check STORE for damage; never change its data.

    Every check runs to the end: one bad row does not hide the next. A store in use is checked as of
    its newest commit; other processes may go on using it. Notes do not count as damage. The result
    is noted in the file STORE/last_check, for `streamkeep status`.

    Exit status: 0  clean
                 3  not a store, locked, or written by a newer version
                 4  damaged: see the findings, then `streamkeep repair --help`

    Examples:
      streamkeep fsck orders.store
      streamkeep fsck orders.store --quick --json
      streamkeep fsck --explain SK201

    Args:
        quick: Check all rows, checksums and counts, but entries only at both ends of each stream.
        key (--stream KEY): Check only this stream.
        code (--explain CODE): Explain a code such as SK201, and what to do; needs no STORE.
    """
    from streamkeep.recovery.fsck.last_check import note_check
    from streamkeep.recovery.fsck.store import check

    if code is not None:
        arguments.refuse_options("cannot be used with --explain", "store_path", "quick", "key")
        code = code.upper()
        kind = CATALOGUE.get(code)
        if kind is None:
            near = ", ".join(sorted(get_close_matches(code, CATALOGUE, 5, 0)))
            raise click.BadParameter(f"no such code: {code}; near it are {near}")
        severity = kind.severity.name.lower()
        if common.as_json():
            members = {"severity": severity, "meaning": kind.meaning, "advice": kind.advice}
            output.json_line("explanation", code=code, **members)
            output.summary(explained=code)
        else:
            output.line(f"{code}: {severity}: {kind.meaning}")
            output.line(f"next: {kind.advice}")
        return
    store_path = arguments.given_store(store_path)
    counts, codes = dict.fromkeys(Severity, 0), set[str]()
    with output.progress("checking", "pages") as advance:
        moved = Progress(lambda state: advance(state.done, state.total))
        for found in check(store_path, quick=quick, stream=key, progress=moved):
            counts[found.severity] += 1
            if found.severity is Severity.ERROR or (
                found.severity is Severity.WARNING and "repair" in CATALOGUE[found.code].advice
            ):
                codes.add(found.code)
            tell_findings([found])
    errors, warnings = counts[Severity.ERROR], counts[Severity.WARNING]
    damaged = errors + warnings > 0
    if key is None:
        note_check(store_path, moved.commit_number, errors, warnings, quick=quick)
    figures = {
        "verdict": "damaged" if damaged else "clean",
        "errors": errors,
        "warnings": warnings,
        "notes": counts[Severity.NOTE],
        "quick": quick,
        "streams": moved.streams,
        "nodes": moved.nodes,
        "size_bytes": moved.size_bytes,
    }
    counted = [
        count_text(counts[one], one.name.lower())
        for one in (Severity.ERROR, Severity.WARNING, Severity.NOTE)
        if counts[one]
    ]
    verdict = ", ".join(["damaged" if damaged else "clean", *counted])
    streams, nodes = count_text(moved.streams, "stream"), count_text(moved.nodes, "node")
    size = size_text(moved.size_bytes)
    text = f"{store_path}: {verdict}; {streams}, {nodes}, {size} in {output.taken()}"
    output.total(text, path=str(store_path), **figures, seconds=output.seconds())
    if damaged:
        lost_segments = codes == {"SK301"}  # a repair has nothing to read them from
        output.note(
            f"next: {CATALOGUE['SK301'].advice if lost_segments else _repair_of(store_path)}"
        )
        click.get_current_context().exit(Exit.DAMAGED)


def tell_findings(findings: Iterable[Finding]) -> None:
    for found in findings:
        members = found.as_json()
        output.item(members.pop("type"), str(found), **members)


def fail_for_archive(found: Sequence[Finding], source: object) -> None:
    """Fail if a store that was restored from `source` names segments that cannot be read."""
    lost = sum(one.severity is Severity.ERROR for one in found)
    if lost:
        raise Failure(
            f"{source}: restored, but its archive has {count_text(lost, 'problem')}",
            hint="`streamkeep archive adopt STORE FILE` takes a copy of a segment; all else can be "
            "used as it is",
            status=Exit.LOSS,
        )


@command()
def repair(
    store_path: StorePath,
    target: Path | None = None,
    dry_run: bool = False,
    scratch: Annotated[Path, click.Path(exists=True, file_okay=False, path_type=Path)]
    | None = None,
) -> None:
    """Save the data of a damaged STORE into a new store.

    STORE is not changed. What can be derived is rebuilt without loss. Damaged macro nodes are read
    up to the damage. If LMDB's own pages are damaged, all pages of the file are searched for nodes
    and rows. Entries that belong nowhere, or may have been deleted, go to NEW/lost+found. The
    command ends with fsck.

    Exit status: 0  repaired, nothing was lost
                 3  not a store, locked, or written by a newer version
                 4  damage is left: a bug, please report it
                 5  repaired, and something was lost: it is listed

    Examples:
      streamkeep repair orders.store --output orders.repaired
      streamkeep repair orders.store --dry-run

    Args:
        target (--output NEW): Write the repaired store here; the folder must not exist.
        dry_run: Only report what would be lost; needs no --output.
        scratch (FOLDER): Where --dry-run writes a temporary copy as large as STORE; by default next
            to it.
    """
    from streamkeep.recovery.salvage import repair as repairs

    if target is None and not dry_run:
        raise click.UsageError(
            f"name the new store, as in `{_repair_of(store_path)}`, or try with --dry-run"
        )
    if scratch is not None and not dry_run:
        raise click.UsageError("--scratch is for --dry-run")
    data = store_path / DATA_FILE
    total = data.stat().st_size // 4096 or None if data.exists() else None
    with output.progress("repairing", "pages") as advance:
        done = 0

        def count(pages: int) -> None:
            nonlocal done
            done += pages
            advance(min(done, total or done), total)

        if dry_run or target is None:
            repaired = repairs.try_repair(store_path, scratch=scratch, progress=count)
        else:
            repaired = repairs.repair(store_path, target, progress=count)
    report = repaired.report
    lost = report.lost_anything()
    verdict = "damaged" if repaired.damaged() else "loss" if lost else "clean"
    if common.as_json():
        for _, loss in sorted(report.streams.items()):
            if loss.any():
                members = loss.as_json()
                output.json_line(members.pop("type"), **members)
        for text in report.other:
            output.json_line("loss", stream=None, notes=[text])
    else:
        if report.corrected:
            output.line(f"corrected: one byte in each of {report.corrected:,} values")
        if report.recovered:
            output.line(f"recovered: {report.recovered:,} macro nodes from pages without a tree")
        if report.stale:
            output.line(f"left out: {report.stale:,} old copies, which newer data replaces")
        for text in report.lines():
            output.line(text)
    tell_findings(repaired.findings)
    where = None if dry_run or target is None else str(target)
    words = {"clean": "nothing was lost", "loss": "something was lost", "damaged": "damage is left"}
    entries = [one for loss in report.streams.values() for one in (loss.entries, loss.archived)]
    output.total(
        f"{where or 'dry run'}: {words[verdict]}, in {output.taken()}",
        path=str(store_path),
        output=where,
        dry_run=dry_run,
        verdict=verdict,
        lost_entries=None if None in entries else sum(one or 0 for one in entries),
        unverified_entries=sum(loss.unverified for loss in report.streams.values()),
        moved_entries=sum(loss.moved for loss in report.streams.values()),
        corrected=report.corrected,
        recovered_nodes=report.recovered,
        old_copies=report.stale,
        lost_and_found=repaired.items,
        seconds=output.seconds(),
    )
    if repaired.items and not dry_run:
        output.note(
            f"lost+found: {repaired.items:,} items, see {repaired.lost_and_found}/index.jsonl"
        )
    if dry_run and lost:
        output.note(f"next: {_repair_of(store_path)}")
    ctx = click.get_current_context()
    if repaired.damaged():
        ctx.exit(Exit.DAMAGED)
    if lost:
        ctx.exit(Exit.LOSS)


def _repair_of(store: Path) -> str:
    target = shlex.quote(f"{str(store).rstrip('/')}.repaired")
    return f"streamkeep repair {shlex.quote(str(store))} --output {target}"


@contextmanager
def _in_parts(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a copy, whose parts count the same, however large each is."""
    parts = ("archive", "data", "check")
    with output.progress(label, "steps") as advance:
        yield lambda what, done, total: advance(
            100 * parts.index(what) + 100 * done // max(total, 1), 300
        )


@command()
def backup(store_path: StorePath, target: Path, no_verify: bool = False) -> None:
    """Copy STORE, which may be in use, to the folder TARGET.

    The copy is of one moment, with the archive of that moment, and is an ordinary store, which
    `streamkeep restore` puts back. It has no free pages, is checked with fsck, and gets the name
    TARGET only when it is complete: a command that fails or is killed leaves an earlier backup
    unchanged.

    TARGET must be missing, empty, or an earlier backup of STORE that has not been written to. Of
    the archive, only segments that the earlier backup lacks are copied.

    Example:
      streamkeep backup orders.store backup.store

    Args:
        no_verify: Do not check the copy with fsck.
    """
    from streamkeep.recovery.backups.backup import backup as copy_store

    with _in_parts("backup") as show:
        report = copy_store(store_path, target, verify=not no_verify, progress=show)
    tell_findings(report.archive_findings)
    members = {"commit": report.commit_number, **report._asdict(), "path": str(report.path)}
    del members["commit_number"]
    members["archive_findings"] = len(report.archive_findings)
    parts_text = [f"{size_text(report.data_bytes)} of data"]
    for count, size, done in (
        (report.copied_segments, report.copied_bytes, "copied"),
        (report.kept_segments, report.kept_bytes, "kept from the earlier backup"),
    ):
        if count:
            segments = count_text(count, "segment")
            parts_text.append(f"{segments} ({size_text(size)}) {done}")
    checked = "not checked" if no_verify else "checked"
    text = f"{target}: {', '.join(parts_text)}; {checked}, in {output.taken()}"
    output.total(text, **members, verified=not no_verify, seconds=output.seconds())
    if not report.recorded:
        hint = "`streamkeep status` needs --backup to know of this backup"
        output.note(f"{store_path} cannot be written, so {hint}")


@command()
def restore(backup_path: Path, store_path: StorePath) -> None:
    """Copy BACKUP, and put it where STORE was.

    The copy is checked with fsck before it gets the name STORE, which must not exist: close the
    damaged store in all processes and move its folder away. BACKUP does not change. What is in the
    object store of the archive stays there; the command tells what fsck found there.

    Exit status: 0  restored
                 3  not a backup, or there is something at STORE
                 4  damaged
                 5  restored, without segments that are no longer in the object store

    Example:
      streamkeep restore backup.store restored.store
    """
    from streamkeep.recovery.backups.backup import restore as restore_store

    with _in_parts("restore") as show:
        report = restore_store(backup_path, store_path, progress=show)
    found = report.archive_findings
    tell_findings(found)
    members = {"epoch": report.epoch, "archive_findings": len(found)}
    size = size_text(report.data_bytes + report.copied_bytes)
    text = f"{store_path}: restored from {backup_path}; {size}; checked, in {output.taken()}"
    output.total(text, path=str(report.path), **members, seconds=output.seconds())
    fail_for_archive(found, backup_path)


@command()
def compact(store_path: StorePath) -> None:
    """Copy the data file of STORE without its free pages.

    Returns to the disk the space of deleted and archived entries. No other process may have STORE
    open. The disk needs space for the new file next to the old one. A crash at any moment leaves
    the old file or the new one.

    Example:
      streamkeep compact orders.store
    """
    from streamkeep.engine.whole_store.compact import compact as compact_store

    data = store_path / "data.mdb"
    total = data.stat().st_size if data.exists() else 0
    with output.progress("compact", "bytes") as advance:
        done = compact_store(store_path, progress=lambda size: advance(size, total))
    text = f"{size_text(done.before_bytes)} before, {size_text(done.after_bytes)} after"
    sizes = {"before_bytes": done.before_bytes, "after_bytes": done.after_bytes}
    output.result(text, **sizes, epoch=done.epoch)
