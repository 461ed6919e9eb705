"""Reads a target's position, without writing. plan and compact need it to decide on a window (R-43).

The position also decides the form of the next window's writes (data-migration 1.8; R-59). The exit point is the
greatest commit_ts that an apply was ever started for. Nothing above it was written, so at a clean checkpoint there the
target equals the source. Retries of a window need no safe mode, because the ledger records each batch.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from binlake import tso
from binlake.config.model import Replication
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, TargetRefused
from binlake.statements.literal import quote_qualified_name
from binlake.target.claim.checkpoint import AsideTable, Checkpoint, CheckpointTable, read_aside
from binlake.target.claim.progress import TargetProgress, read_open_progress
from binlake.target.definitions.forms import Name
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import has_tables

Forms = Literal["safe", "plain"]


def read_checkpoint(replication: Replication, cluster_id: int) -> Checkpoint | None:
    """The checkpoint of the SQL sink; None without a sink, or when the table or the row is missing.

    Cluster id 0 selects the only row. Raises TargetUnavailable, TargetRefused, CheckpointConflict,
    CheckpointMoved.
    """
    if replication.target is None:
        return None
    with closing(TargetSession(replication.target)) as session:
        return CheckpointTable(replication.target.checkpoint_schema, cluster_id).read(session)


def read_checkpoint_ts(replication: Replication, cluster_id: int) -> int | None:
    """commitTS of `read_checkpoint`: everything at or below it is downstream."""
    checkpoint = read_checkpoint(replication, cluster_id)
    return checkpoint.commit_ts if checkpoint else None


@dataclass(frozen=True)
class TargetPosition:
    """A target's position.

    `commit_ts`: its checkpoint, None before the first window; `opened`: the open window; `max_packet`: bytes that one
    packet to it may have; `forms`: the form that the next window's writes need; `aside`: the tables that are set aside;
    `exit_ts`: the commit_ts up to which rows may be on the target while no window is open; `is_recorded`: False when
    the target has no record that Binlake wrote the row.
    """

    commit_ts: int | None
    opened: TargetProgress | None
    max_packet: int
    forms: Forms = "safe"
    aside: frozenset[Name] = frozenset()
    exit_ts: int = 0
    is_recorded: bool = True

    @property
    def window(self) -> tuple[int, int] | None:
        """(lo, hi) of the open window; it must be finished before any other (hazards R-16)."""
        return None if self.opened is None else self.opened.window

    def compute_after_window(self, target: TargetSection, hi: int) -> TargetPosition:
        """The position of `target` after the next window, up to `hi`, is applied and nothing else has changed it."""
        exit_ts = max(self.exit_ts, hi)
        forms = choose_forms(target, Checkpoint(hi, consistent=True), exit_ts)
        return replace(self, commit_ts=hi, opened=None, forms=forms, exit_ts=exit_ts, is_recorded=True)


def read_position(target: TargetSection, replication: str, cluster_id: int) -> TargetPosition:
    """The position of `target` for `replication`, in one read.

    Raises as `read_checkpoint`, and CheckpointConflict when another replication holds a window open there.
    """
    with closing(TargetSession(target)) as session:
        stored = CheckpointTable(target.checkpoint_schema, cluster_id).read_stored(session)
        checkpoint = stored.require_unmoved(target.checkpoint_schema)
        opened = _open_progress(session, target, cluster_id, replication)
        packet = session.fetch_max_packet()
        aside = read_aside(session, target.checkpoint_schema, cluster_id)
        # The form of an open window is in its manifest.
        exit_ts = _exit_point(session, target, cluster_id, checkpoint) if opened is None else 0
    if opened is not None and opened.replication != replication:
        raise CheckpointConflict(
            f"the replication {opened.replication} holds the window {opened.open_lo}-{opened.open_hi}"
            " open on this target",
            where={"cluster": cluster_id, "schema": target.checkpoint_schema, "task": replication},
            hint=f"let {opened.replication} finish it, or take over: `binlake checkpoint adopt --close-window`",
        )
    forms = choose_forms(target, checkpoint, exit_ts)
    commit_ts = checkpoint.commit_ts if checkpoint else None
    return TargetPosition(commit_ts, opened, packet, forms, frozenset(aside), exit_ts, stored.recorded is not None)


def read_tables_aside(replication: Replication, cluster_id: int) -> list[AsideTable]:
    """The tables that are set aside, by name. Raises as `read_checkpoint`."""
    if replication.target is None:
        return []
    with closing(TargetSession(replication.target)) as session:
        return list(read_aside(session, replication.target.checkpoint_schema, cluster_id).values())


def read_open_window(replication: Replication, cluster_id: int) -> TargetProgress | None:
    """The window that was started but not finished on the target, or None. Raises as `read_checkpoint`."""
    if replication.target is None:
        return None
    with closing(TargetSession(replication.target)) as session:
        return _open_progress(session, replication.target, cluster_id, replication.name)


def _open_progress(
    session: TargetSession, target: TargetSection, cluster_id: int, replication: str
) -> TargetProgress | None:
    try:
        return read_open_progress(session, target.checkpoint_schema, cluster_id, replication)
    except TargetRefused as error:
        if get_error_code(error) in MISSING:
            return None
        raise


def _exit_point(session: TargetSession, target: TargetSection, cluster_id: int, checkpoint: Checkpoint | None) -> int:
    # A drainer's target has the checkpoint table, but not Binlake's other tables.
    if has_tables(session, target.checkpoint_schema):
        return read_exit_point(session, target, cluster_id, checkpoint)
    return estimate_exit_point(target, checkpoint)


def read_exit_point(
    session: TargetSession, target: TargetSection, cluster_id: int, checkpoint: Checkpoint | None
) -> int:
    """The commit_ts up to which rows may be on the target while no window is open; 0 if nothing indicates rows.

    Windows that another replication abandoned count too. Raises as `estimate_exit_point`.
    """
    condition = " WHERE clusterID = %s" if cluster_id else ""
    sql = f"SELECT MAX(exit_ts) FROM {quote_qualified_name(target.checkpoint_schema, 'binlake_progress')}{condition}"
    recorded = int(session.fetch_value(sql, (cluster_id,) if cluster_id else ()) or 0)
    if recorded and read_aside(session, target.checkpoint_schema, cluster_id):
        # The checkpoint is unclean only because of the tables set aside, which get no rows.
        return recorded
    # The checkpoint is past our windows and still unclean: a drainer has written since.
    is_passed = checkpoint is not None and recorded <= checkpoint.commit_ts
    return max(recorded, estimate_exit_point(target, checkpoint) if is_passed else 0)


def estimate_exit_point(target: TargetSection, checkpoint: Checkpoint | None) -> int:
    """The exit point if none is recorded: safe-mode-duration-s of commit time after an unclean checkpoint, else 0.

    Raises CheckpointConflict when safe-mode is auto and that duration is 0 (S4-41).
    """
    if checkpoint is None or checkpoint.consistent:
        return 0
    if target.safe_mode == "auto" and target.safe_mode_duration_s == 0:
        raise CheckpointConflict(
            "another writer left this checkpoint in the middle of its work, and safe-mode-duration-s is 0",
            where={"commit_ts": checkpoint.commit_ts},
            hint="set target.safe-mode-duration-s to the seconds of commit time by which it may have been ahead",
        )
    physical = tso.extract_physical(checkpoint.commit_ts) + int(target.safe_mode_duration_s * 1000)
    return tso.compose(physical, tso.extract_logical(checkpoint.commit_ts))


def choose_forms(target: TargetSection, checkpoint: Checkpoint | None, exit_ts: int) -> Forms:
    """The form of the next window's writes. A window that starts below `exit_ts` is written in safe mode (S4-40)."""
    if target.safe_mode != "auto":
        return "plain" if target.safe_mode == "never" else "safe"
    # Without a checkpoint, which rows the tables already have is unknown.
    return "safe" if checkpoint is None or checkpoint.commit_ts < exit_ts else "plain"
