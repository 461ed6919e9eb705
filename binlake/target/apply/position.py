"""A target's position, read without writing: what plan and compact ask before they decide a window (R-43).

It also decides the form of the next window's writes (data-migration 1.8; R-59). The exit point is the greatest
commit_ts that an apply was ever started for. Nothing after it was written, so a window that starts there at a clean
checkpoint finds the target exactly as the source was. Retries of a window need no safe mode: the ledger knows each
batch.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from binlake import tso
from binlake.config.model import Replication, Target
from binlake.errors import CheckpointConflict, TargetRefused
from binlake.statements.literal import qualified
from binlake.target.claim.aside import AsideTable, read_aside
from binlake.target.claim.progress import Checkpoint, CheckpointTable, Progress, read_open_progress
from binlake.target.definitions.forms import Name
from binlake.target.session.failures import MISSING, code_of
from binlake.target.session.session import Session
from binlake.target.session.tables import tables_exist

Forms = Literal["safe", "plain"]


def read_checkpoint(replication: Replication, cluster_id: int) -> Checkpoint | None:
    """The checkpoint of the SQL sink; None without a sink, or when table or row are missing.

    Cluster id 0 means the only row. Raises TargetUnavailable, TargetRefused, CheckpointConflict.
    """
    if replication.target is None:
        return None
    with closing(Session(replication.target)) as session:
        return CheckpointTable(replication.target.checkpoint_schema, cluster_id).read(session)


def read_checkpoint_ts(replication: Replication, cluster_id: int) -> int | None:
    """commitTS of `read_checkpoint`: everything at or below it is downstream."""
    checkpoint = read_checkpoint(replication, cluster_id)
    return checkpoint.commit_ts if checkpoint else None


@dataclass(frozen=True)
class Position:
    """A target's position: `commit_ts` (None before its first window), the window it holds `opened`, the bytes that
    one packet to it may have, the form that the next window's writes need, its tables that are set `aside`, and the
    commit_ts up to which rows may be there while no window is open (`exit_ts`)."""

    commit_ts: int | None
    opened: Progress | None
    max_packet: int
    forms: Forms = "safe"
    aside: frozenset[Name] = frozenset()
    exit_ts: int = 0

    @property
    def window(self) -> tuple[int, int] | None:
        """(lo, hi) of the open window; it must be finished before any other (hazards R-16)."""
        return None if self.opened is None else self.opened.window

    def after_window(self, target: Target, hi: int) -> Position:
        """The position of `target` once the next window, up to `hi`, is applied and nothing else has happened there."""
        exit_ts = max(self.exit_ts, hi)
        forms = choose_forms(target, Checkpoint(hi, consistent=True), exit_ts)
        return replace(self, commit_ts=hi, opened=None, forms=forms, exit_ts=exit_ts)


def read_position(target: Target, replication: str, cluster_id: int) -> Position:
    """The position of `target` for `replication`, in one read.

    Raises as `read_checkpoint`, and CheckpointConflict when another replication holds a window open there.
    """
    with closing(Session(target)) as session:
        checkpoint = CheckpointTable(target.checkpoint_schema, cluster_id).read(session)
        opened = _open_progress(session, target, cluster_id, replication)
        packet = session.max_packet()
        aside = read_aside(session, target.checkpoint_schema, cluster_id)
        # An open window has its form in its manifest.
        exit_ts = _exit_point(session, target, cluster_id, checkpoint) if opened is None else 0
    if opened is not None and opened.replication != replication:
        raise CheckpointConflict(
            f"the replication {opened.replication} holds the window {opened.open_lo}-{opened.open_hi}"
            " open on this target",
            where={"cluster": cluster_id, "schema": target.checkpoint_schema, "task": replication},
            hint=f"let {opened.replication} finish it, or take its place: `binlake checkpoint adopt --close-window`",
        )
    forms = choose_forms(target, checkpoint, exit_ts)
    commit_ts = checkpoint.commit_ts if checkpoint else None
    return Position(commit_ts, opened, packet, forms, frozenset(aside), exit_ts)


def read_tables_aside(replication: Replication, cluster_id: int) -> list[AsideTable]:
    """The tables that are set aside, by name. Raises as `read_checkpoint`."""
    if replication.target is None:
        return []
    with closing(Session(replication.target)) as session:
        return list(read_aside(session, replication.target.checkpoint_schema, cluster_id).values())


def read_open_window(replication: Replication, cluster_id: int) -> Progress | None:
    """The window that was begun on the target and not finished; None without one. Raises as `read_checkpoint`."""
    if replication.target is None:
        return None
    with closing(Session(replication.target)) as session:
        return _open_progress(session, replication.target, cluster_id, replication.name)


def _open_progress(session: Session, target: Target, cluster_id: int, replication: str) -> Progress | None:
    try:
        return read_open_progress(session, target.checkpoint_schema, cluster_id, replication)
    except TargetRefused as error:
        if code_of(error) in MISSING:
            return None
        raise


def _exit_point(session: Session, target: Target, cluster_id: int, checkpoint: Checkpoint | None) -> int:
    # A drainer's target has the checkpoint, but none of our tables.
    if tables_exist(session, target.checkpoint_schema):
        return read_exit_point(session, target, cluster_id, checkpoint)
    return estimate_exit_point(target, checkpoint)


def read_exit_point(session: Session, target: Target, cluster_id: int, checkpoint: Checkpoint | None) -> int:
    """The commit_ts up to which rows may be on the target, while no window is open; 0 when there is no sign of any.

    A replication that gave up its window counts too. Raises as `estimate_exit_point`.
    """
    condition = " WHERE clusterID = %s" if cluster_id else ""
    sql = f"SELECT MAX(exit_ts) FROM {qualified(target.checkpoint_schema, 'binlake_progress')}{condition}"
    recorded = int(session.value(sql, (cluster_id,) if cluster_id else ()) or 0)
    if recorded and read_aside(session, target.checkpoint_schema, cluster_id):
        # It is unclean because of these tables, which get no rows.
        return recorded
    # Our windows are passed, and still it is unclean: a drainer has been at work since.
    return max(recorded, estimate_exit_point(target, checkpoint) if _is_passed(recorded, checkpoint) else 0)


def estimate_exit_point(target: Target, checkpoint: Checkpoint | None) -> int:
    """Where none is recorded: safe-mode-duration-s of commit time after an unclean checkpoint, else 0.

    Raises CheckpointConflict when safe-mode is auto and that duration is 0 (S4-41).
    """
    if checkpoint is None or checkpoint.consistent:
        return 0
    if target.safe_mode == "auto" and target.safe_mode_duration_s == 0:
        raise CheckpointConflict(
            "another writer left this checkpoint in the middle of its work, and safe-mode-duration-s is 0",
            where={"commit_ts": checkpoint.commit_ts},
            hint="set target.safe-mode-duration-s to the commit time that it may have been ahead",
        )
    physical = tso.physical(checkpoint.commit_ts) + int(target.safe_mode_duration_s * 1000)
    return tso.compose(physical, tso.logical(checkpoint.commit_ts))


def choose_forms(target: Target, checkpoint: Checkpoint | None, exit_ts: int) -> Forms:
    """The form of the next window's writes; a window that begins below `exit_ts` is safe as a whole (S4-40)."""
    if target.safe_mode != "auto":
        return "plain" if target.safe_mode == "never" else "safe"
    # Without a checkpoint it is unknown what the tables were filled with.
    return "safe" if checkpoint is None or checkpoint.commit_ts < exit_ts else "plain"


def _is_passed(recorded: int, checkpoint: Checkpoint | None) -> bool:
    return checkpoint is not None and recorded <= checkpoint.commit_ts
