"""Which rows may be on the target already, and so which form a window's writes need (data-migration 1.8; R-59).

The exit point is the greatest commit_ts that an apply was ever started for. Behind it nothing was ever written, so a
window that starts there at a clean checkpoint finds the target exactly as the source was. Retries of a window need no
safe mode: the ledger knows each batch.
"""

from __future__ import annotations

from typing import Literal

from binlake import tso
from binlake.config.model import Target
from binlake.errors import CheckpointConflict
from binlake.statements.literal import qualified
from binlake.target.claim.aside import read_aside
from binlake.target.claim.checkpoint import Checkpoint
from binlake.target.session.session import Session

Forms = Literal["safe", "plain"]


def exit_point(session: Session, target: Target, cluster_id: int, checkpoint: Checkpoint | None) -> int:
    """The commit_ts up to which rows may be on the target, while no window is open; 0 when there is no sign of any.

    A replication that gave its window up counts too. Raises as `exit_after`.
    """
    condition = " WHERE clusterID = %s" if cluster_id else ""
    sql = f"SELECT MAX(exit_ts) FROM {qualified(target.checkpoint_schema, 'binlake_progress')}{condition}"
    recorded = int(session.rows(sql, (cluster_id,) if cluster_id else ())[0][0] or 0)
    if recorded and read_aside(session, target.checkpoint_schema, cluster_id):
        # It is unclean for these tables, which get no rows.
        return recorded
    # Ours are behind it, and still it is unclean: a drainer was at work since.
    return max(recorded, exit_after(target, checkpoint) if _is_passed(recorded, checkpoint) else 0)


def exit_after(target: Target, checkpoint: Checkpoint | None) -> int:
    """`exit_point` where none is recorded: safe-mode-duration-s of commit time after an unclean checkpoint, else 0.

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


def forms_of(target: Target, checkpoint: Checkpoint | None, exit_ts: int) -> Forms:
    """The form of the next window's writes; a window that begins below `exit_ts` is safe as a whole (S4-40)."""
    if target.safe_mode != "auto":
        return "plain" if target.safe_mode == "never" else "safe"
    # Without a checkpoint nobody says what the tables were filled with.
    return "safe" if checkpoint is None or checkpoint.commit_ts < exit_ts else "plain"


def _is_passed(recorded: int, checkpoint: Checkpoint | None) -> bool:
    return checkpoint is not None and recorded <= checkpoint.commit_ts
