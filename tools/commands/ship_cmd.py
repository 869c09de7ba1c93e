"""ship ..., standby, promote: copies of a store elsewhere, and stores that follow one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from streamkeep.engine.system.progress import StepProgress
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import InvalidIdError, StoreError
from streamkeep.format.humanize import count_text, size_text, time_text
from streamkeep.tools.base import arguments, common, output
from streamkeep.tools.base.arguments import From, Ms, SizeBytes, StorePath
from streamkeep.tools.base.command import CommandGroup, command
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import on_signals, open_store
from streamkeep.tools.commands.follow_cmd import detach_from, follow_server
from streamkeep.tools.commands.store_cmds import fail_for_archive, tell_findings

if TYPE_CHECKING:
    from streamkeep.engine.api.views import Snapshot
    from streamkeep.recovery.copies.verify import VerifyReport
    from streamkeep.recovery.fsck.findings import Finding

_CATCH_UP_S: Final = 5.0  # in which a shipper that runs brings a copy up to date


@contextmanager
def _progress(label: str, unit: str = "pieces") -> Iterator[StepProgress]:
    with output.progress(label, unit) as advance:
        yield lambda _, *state: advance(*state)


class _ShipGroup(CommandGroup):
    """A group that also takes STORE and TARGET: what `run` does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what is no command of the group for the arguments of its own."""
        own = bool(args) and args[0] not in (*self.commands, "-h", "--help")
        return super().parse_args(ctx, ["", *args] if own else args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command of the group; its own has no name in messages."""
        return super().get_command(ctx, name) if name else run

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "STORE TARGET [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", "       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        run.format_options(click.Context(run, parent=ctx, info_name=""), formatter)
        self.format_commands(ctx, formatter)


@click.group("ship", cls=_ShipGroup)
def ship() -> None:
    """Keep a copy of STORE elsewhere, which follows it.

    TARGET is a folder, best on another machine or disk, or a bucket such as s3://bucket/orders.
    Commits are shipped each second, after the disk has them. Of the copy, every commit can be
    proved without a restore, and restored, for as long as --keep says. Any number of processes may
    use STORE meanwhile.

    Examples:
      streamkeep ship orders.store orders.copy --once
      streamkeep ship orders.store s3://bucket/orders
      streamkeep ship verify s3://bucket/orders
      streamkeep ship restore s3://bucket/orders orders.store
      streamkeep ship restore s3://bucket/orders before.store --at 2026-11-28T12:00
    """


@command()
def run(
    store_path: StorePath,
    target: str,
    once: bool = False,
    every: Ms = 1_000,
    keep: Ms | None = None,
    hold: SizeBytes = 4 << 30,
    take_over: bool = False,
    renew: bool = False,
    forget: bool = False,
) -> None:
    """Ship STORE to TARGET.

    Args:
        once (--once/--follow): End when TARGET has all that is committed now, or go on.
        every: How often to ship commits.
        keep: For how long TARGET can go back to any moment; by default as the last time, first 7d.
        hold: What STORE keeps of its journal for TARGET, at most. Past it, the copy begins anew.
        take_over: Ship to a TARGET that follows another store of the same identity now, or that is
            empty although STORE has shipped there: its disk may not be mounted.
        renew: Make the copy anew, and then remove what TARGET had before.
        forget: Ship no more to TARGET: STORE holds no journal for it.
    """
    from streamkeep.recovery.copies.shipper import Shipper
    from streamkeep.recovery.copies.shipping import forget as forget_copy

    if forget:
        others = ("every", "keep", "hold", "take_over", "renew")
        arguments.refuse_options("cannot be used with --forget", *others)
        held = forget_copy(store_path, target)
        text = "holds nothing for it any more" if held else "held nothing for it"
        output.total(f"{target}: {store_path} {text}", target=target, forgotten=held)
        return
    if hold < 1:
        raise click.UsageError("--hold is a size, such as 4G")
    with open_store(store_path) as store, _progress("base", "bytes") as progress:
        shipper = Shipper(
            store,
            target,
            every=every / 1000,
            keep=None if keep is None else keep / 1000,
            hold_bytes=hold,
            take_over=take_over,
            renew=renew,
            progress=progress,
        )
        if not once:
            on_signals(shipper.stop.set)
            output.note(f"{store_path}: shipping to {shipper.target.uri}; Ctrl-C ends it")
        report = shipper.run(once=once)
    base = f"a base of {size_text(report.base_bytes)}, " if report.base_bytes else ""
    output.total(
        f"{report.target}: has everything up to commit {report.commit_number}; {base}"
        f"{count_text(report.pieces, 'piece')} ({size_text(report.sent_bytes)}), "
        f"in {output.taken()}",
        **report._asdict(),
        seconds=output.seconds(),
    )
    if report.missing_segments:
        missing = count_text(report.missing_segments, "segment")
        raise Failure(
            f"{missing} of the archive could not be copied, because STORE does not have them",
            hint="streamkeep fsck STORE names them",
            status=Exit.DAMAGED,
        )


@ship.command()
def verify(
    target: str, everything: bool = False, drill: bool = False, store: StorePath | None = None
) -> None:
    """Prove that TARGET has each commit of its store up to the last one.

    Reads every object that was not proved before, and compares it with its checksum. Each record
    must follow the one before, as the store wrote it. Nothing is restored, unless --restore or
    --store is given: those are a drill for the day on which the disk dies.

    Exit status: 0  proved
                 3  not a copy, or not to be reached
                 4  damaged, or something is missing
                 5  restored, without segments of the archive that are nowhere
                 7  what was restored differs from --store

    Examples:
      streamkeep ship verify orders.copy
      streamkeep ship verify s3://bucket/orders --all --store orders.store

    Args:
        everything (--all): Read again what was proved before.
        drill (--restore): Also restore it into a temporary folder, and check that with fsck.
        store (STORE): The same, as STORE is now, and compare both as `diff` does.
    """
    from streamkeep.recovery.copies.verify import verify_copy

    with ExitStack() as stack:
        present = None
        if store is not None:
            source = stack.enter_context(open_store(store, readonly=True))
            # Taken first: programs go on writing, and what is restored is of this commit.
            present = stack.enter_context(source.snapshot())
            with suppress(StoreError):  # nothing ships it: what is missing is said below
                source.wait_shipped(_CATCH_UP_S)
        with _progress("verify") as progress:
            report = verify_copy(target, everything=everything, progress=progress)
        for problem in report.problems:
            output.item("problem", str(problem), where=problem.where, problem=problem.problem)
        drilled = None
        if (drill or present is not None) and not report.problems:
            drilled = _drill(report, present)
    restored, findings, differences = drilled or (None, (), 0)
    problems = len(report.problems)
    if common.as_json():
        members = {**report._asdict(), "problems": problems, "restored": restored}
        members |= {"archive_findings": len(findings), "differences": differences}
        output.summary(**members, seconds=output.seconds())
    elif not problems:
        known = f", {report.known_commits:,} known before" if report.known_commits else ""
        output.line(
            f"{report.target}: proved from commit {report.first_commit} to {report.last_commit}, "
            f"of {time_text(report.last_ms)}: {count_text(report.commits, 'commit')} "
            f"in {count_text(report.pieces, 'piece')}{known}, "
            f"{count_text(report.segments, 'segment')}, in {output.taken()}"
        )
        if restored is not None:
            same = f"; it is the same as {store}" if store is not None and not differences else ""
            what = count_text(len(findings), "problem") if findings else "nothing"
            output.line(f"restored up to commit {restored}; fsck found {what}{same}")
    if problems:
        renew = "`streamkeep ship STORE TARGET --once --renew`"
        if not report.damaged:
            renewal = f"what goes on is sound; the rest is removed after --keep, or now by {renew}"
        elif not report.noted:
            renewal = f"the damage could not be noted at TARGET, so make it anew: {renew}"
        else:
            renewal = (
                "a shipper begins anew within ten minutes, and at its start; at once does "
                "`streamkeep ship STORE TARGET --once`"
            )
        raise Failure(
            f"{report.target}: {count_text(problems, 'problem')}",
            hint=f"{renewal}; `ship restore --commit N` restores what comes before the damage; "
            "without segments it restores all else",
            status=Exit.DAMAGED,
        )
    if differences:
        raise Failure(
            f"{report.target}: {count_text(differences, 'difference')} between {store} and what "
            "was restored",
            status=Exit.DIFFERENT,
        )
    fail_for_archive(findings, report.target)


def _drill(
    report: VerifyReport, present: Snapshot[bytes] | None
) -> tuple[int, tuple[Finding, ...], int]:
    """Restore a copy, which is checked with fsck, and compare it with its store.

    Returns:
        the commit that was restored, what fsck found in the archive, and the number of differences.
    """
    from streamkeep.recovery.copies.restore import restore_copy
    from streamkeep.recovery.copies.target import Target
    from streamkeep.tools.commands.diff_cmd import print_json, print_text
    from streamkeep.transfer.differences import diff_txns

    tell = print_json if common.as_json() else print_text
    commit = None if present is None else present.txn.newest_commit()
    owner = str(Target(report.target).known_head().store)
    if present is not None and present.uuid != owner:
        raise Failure(f"{report.target}: the copy of another store ({owner})")
    if commit is not None and commit > report.last_commit:
        raise Failure(
            f"{report.target}: it has commits up to {report.last_commit}, and the store had "
            f"{commit} when this began",
            hint="`streamkeep ship STORE TARGET --once` brings it up to date",
        )
    with tempfile.TemporaryDirectory(prefix="streamkeep-") as folder:
        restored = restore_copy(report.target, Path(folder) / "store", commit=commit)
        tell_findings(restored.archive_findings)
        if present is None:
            return restored.commit_number, restored.archive_findings, 0
        found = 0
        with open_store(restored.path, readonly=True) as store, store.snapshot() as copied:
            for one in diff_txns(present.txn, copied.txn):
                tell(one)
                found += 1
        return restored.commit_number, restored.archive_findings, found


@ship.command()
def restore(target: str, new: Path, at: From | None = None, commit: int | None = None) -> None:
    """Make the store NEW of the copy TARGET.

    Streams, groups, pending entries, jobs, message IDs and the archive are as they were at the
    newest commit of TARGET, or at an earlier one. The store is checked with fsck before it gets
    its name. TARGET does not change. A restore that was killed goes on where it was. Segments of
    the archive that are nowhere are listed.

    `streamkeep ship` then goes on from NEW with the same TARGET, and a store that still ships
    there gets an error.

    Exit status: 0  restored
                 3  not a copy, not to be reached, or there is something at NEW
                 4  damaged; the error says up to which commit it can be restored
                 5  restored, without segments of the archive that are nowhere

    Examples:
      streamkeep ship restore orders.copy restored.store
      streamkeep ship restore s3://bucket/orders before.store --at 2026-11-28T12:00

    Args:
        at (TIME): As it was at a time, such as 2026-11-28T12:00 or -2h; a second earlier at most.
        commit (N): As it was after commit N.
    """
    from streamkeep.recovery.copies.restore import restore_copy

    if at is not None:
        arguments.refuse_options("cannot be used with --at", "commit")
    try:
        at_ms = None if at is None else StreamId.parse(at).ms
    except InvalidIdError:
        raise click.BadParameter(
            f"{os.fsdecode(at or b'')}: not a time, such as 2026-11-28T12:00, an age such as -2h, "
            "or Unix time in milliseconds",
            param_hint="'--at'",
        ) from None
    with _progress("restore") as progress:
        report = restore_copy(target, new, commit=commit, at_ms=at_ms, progress=progress)
    found = report.archive_findings
    tell_findings(found)
    behind = f"; {report.target} has {report.behind:,} later ones" if report.behind else ""
    members = {**report._asdict(), "path": str(report.path), "archive_findings": len(found)}
    output.total(
        f"{new}: restored up to commit {report.commit_number}, of {time_text(report.time_ms)}"
        f"{behind}; checked, in {output.taken()}",
        **members,
        seconds=output.seconds(),
    )
    fail_for_archive(found, report.target)


# --- standby, promote ---------------------------------------------------------------------------


@command()
def standby(source: str, store_path: StorePath, once: bool = False, every: Ms = 500) -> None:
    """Follow a copy, or a running server, with a STORE that can be read.

    SOURCE is what `streamkeep ship` writes to: a folder or a bucket. STORE is restored from it if
    it is missing, and then follows it, some two seconds behind. Programs may open STORE with
    readonly=True meanwhile, and `streamkeep serve --readonly` serves it; nothing else can write to
    it before `streamkeep promote`.

    SOURCE may also be redis://HOST:PORT (rediss:// with TLS) of a `streamkeep serve`, which STORE
    follows within milliseconds, as `streamkeep follow` does: streams and groups are the same,
    the archive is its own.

    Examples:
      streamkeep standby orders.copy standby.store --once
      streamkeep standby s3://bucket/orders standby.store

    Args:
        once: End when STORE has all that SOURCE has now.
        every: How often to look for new commits.
    """
    from streamkeep.recovery.copies.standby import Standby

    if source.startswith(("redis://", "rediss://", "unix://")):
        arguments.refuse_options("is for a copy, not for a server", "every")
        follow_server(source, store_path, once=once)
        return
    with _progress("restore") as progress:
        following = Standby(source, store_path, every=every / 1000, progress=progress)
    try:
        if not once:
            on_signals(following.stop.set)
            output.note(f"{store_path}: following {following.target.uri}; Ctrl-C ends it")
        state = following.run(once=once)
    finally:
        following.close()
    told = f"up to commit {state.commit_number}, of {time_text(state.time_ms)}"
    output.total(f"{store_path}: has everything {told}", **state._asdict())
    if following.missing:
        missing = count_text(len(following.missing), "segment")
        raise Failure(
            f"{missing} of the archive could not be fetched: SOURCE does not have them whole",
            hint="`streamkeep fsck STORE` names them; all else can be read",
            status=Exit.LOSS,
        )


@command()
def promote(store_path: StorePath) -> None:
    """Make a standby the store that programs write to.

    First make sure that nothing writes to the store that it followed, and end `streamkeep standby`
    here. Commits that were not shipped are only in that store. `streamkeep ship` of STORE then
    goes on with the same copy, where that store is refused from then on.

    Example:
      streamkeep standby orders.copy standby.store --once
      streamkeep promote standby.store
    """
    from streamkeep.recovery.copies.standby import promote as promote_store
    from streamkeep.replication import following

    state = promote_store(store_path)
    if state is None:
        with open_store(store_path) as store:
            row = following(store)
        if row is None:
            raise StoreError(f"{store_path}: no standby; next: open it, it can be written")
        detach_from(row.source, store_path)
        return
    told = f"after commit {state.commit_number}, of {time_text(state.time_ms)}"
    output.total(f"{store_path}: can be written; it goes on {told}", **state._asdict())
