"""A target's position, read without writing: what plan and compact ask before they decide a window (R-43)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from binlake.config.model import Replication, Target
from binlake.errors import CheckpointConflict, TargetRefused
from binlake.target.apply.safemode import Forms, exit_after, exit_point, forms_of
from binlake.target.claim.aside import AsideTable, read_aside
from binlake.target.claim.checkpoint import Checkpoint, CheckpointTable
from binlake.target.claim.progress import Progress, open_progress
from binlake.target.definitions.definitions import Name
from binlake.target.session.failures import MISSING, code_of
from binlake.target.session.session import Session
from binlake.target.session.tables import tables_exist


def checkpoint_of(replication: Replication, cluster_id: int) -> Checkpoint | None:
    """The checkpoint of the SQL sink; None without a sink, or when table or row are missing.

    Cluster id 0 means the only row. Raises TargetUnavailable, TargetRefused, CheckpointConflict.
    """
    if replication.target is None:
        return None
    with closing(Session(replication.target)) as session:
        return CheckpointTable(replication.target.checkpoint_schema, cluster_id).read(session)


def checkpoint_ts(replication: Replication, cluster_id: int) -> int | None:
    """commitTS of `checkpoint_of`: everything at or below it is downstream."""
    found = checkpoint_of(replication, cluster_id)
    return found.commit_ts if found else None


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


def position_of(target: Target, task: str, cluster_id: int) -> Position:
    """The position of `target` for the replication `task`, in one read.

    Raises as `checkpoint_of`, and CheckpointConflict when another replication holds a window open there.
    """
    with closing(Session(target)) as session:
        checkpoint = CheckpointTable(target.checkpoint_schema, cluster_id).read(session)
        opened = _open_progress(session, target, cluster_id, task)
        packet = session.max_packet()
        aside = read_aside(session, target.checkpoint_schema, cluster_id)
        # A window that is open has its form in its manifest.
        exit_ts = _exit_point(session, target, cluster_id, checkpoint) if opened is None else 0
    if opened is not None and opened.task != task:
        raise CheckpointConflict(
            f"the replication {opened.task} holds the window {opened.open_lo}-{opened.open_hi} open on this target",
            where={"cluster": cluster_id, "schema": target.checkpoint_schema, "task": task},
            hint=f"let {opened.task} finish it, or take its place: `binlake checkpoint adopt --close-window`",
        )
    forms = forms_of(target, checkpoint, exit_ts)
    commit_ts = checkpoint.commit_ts if checkpoint else None
    return Position(commit_ts, opened, packet, forms, frozenset(aside), exit_ts)


def aside_of(replication: Replication, cluster_id: int) -> list[AsideTable]:
    """The tables that are set aside, by name. Raises as `checkpoint_of`."""
    if replication.target is None:
        return []
    with closing(Session(replication.target)) as session:
        return list(read_aside(session, replication.target.checkpoint_schema, cluster_id).values())


def progress_of(replication: Replication, cluster_id: int) -> Progress | None:
    """The window that was begun on the target and not finished; None when there is none. Raises as `checkpoint_of`."""
    if replication.target is None:
        return None
    with closing(Session(replication.target)) as session:
        return _open_progress(session, replication.target, cluster_id, replication.name)


def _open_progress(session: Session, target: Target, cluster_id: int, task: str) -> Progress | None:
    try:
        return open_progress(session, target.checkpoint_schema, cluster_id, task)
    except TargetRefused as error:
        if code_of(error) in MISSING:
            return None
        raise


def _exit_point(session: Session, target: Target, cluster_id: int, checkpoint: Checkpoint | None) -> int:
    # A drainer's target has the checkpoint and none of our tables.
    if tables_exist(session, target.checkpoint_schema):
        return exit_point(session, target, cluster_id, checkpoint)
    return exit_after(target, checkpoint)
