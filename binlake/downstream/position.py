"""Where a target stands, read without writing: what plan and compact ask before they decide a window (R-43)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from binlake.config.model import Replication, Target
from binlake.downstream.checkpoint import Checkpoint, CheckpointTable
from binlake.downstream.failures import MISSING, code_of
from binlake.downstream.progress import Progress, open_progress
from binlake.downstream.session import Session
from binlake.errors import TargetRefused


def checkpoint_of(replication: Replication, cluster_id: int) -> Checkpoint | None:
    """The checkpoint of the SQL sink; None without a sink, or when table or row are missing.

    Cluster id 0 means the only row. Raises TargetUnavailable, TargetRefused, CheckpointConflict.
    """
    if replication.target is None:
        return None
    with _session(replication.target) as session:
        return CheckpointTable(replication.target.checkpoint_schema, cluster_id).read(session)


def checkpoint_ts(replication: Replication, cluster_id: int) -> int | None:
    """commitTS of `checkpoint_of`: everything at or below it is downstream."""
    found = checkpoint_of(replication, cluster_id)
    return found.commit_ts if found else None


def progress_of(replication: Replication, cluster_id: int) -> Progress | None:
    """The window that was begun on the target and not finished; None when there is none. Raises as `checkpoint_of`."""
    if replication.target is None:
        return None
    with _session(replication.target) as session:
        try:
            return open_progress(session, replication.target.checkpoint_schema, cluster_id)
        except TargetRefused as error:
            if code_of(error) in MISSING:
                return None
            raise


def open_window(replication: Replication, cluster_id: int) -> tuple[int, int] | None:
    """(lo, hi) of the open window; it must be finished before any other (hazards R-16)."""
    found = progress_of(replication, cluster_id)
    if found is None or found.open_lo is None or found.open_hi is None:
        return None
    return found.open_lo, found.open_hi


@contextmanager
def _session(target: Target) -> Iterator[Session]:
    session = Session(target)
    try:
        yield session
    finally:
        session.close()
