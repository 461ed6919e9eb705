"""Sets tables aside by command, while no process applies: between two windows or inside an open one (U-16).

The statements of an open window stay pinned: finalize skips those for these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict
from binlake.rows.schema.forms import fold_pair
from binlake.target.claim.checkpoint import AsideTable, Checkpoint, CheckpointTable, is_settled, read_aside, write_aside
from binlake.target.claim.claim import open_claimed_transaction
from binlake.target.claim.progress import TargetProgress, read_progress, require_owner, write_progress
from binlake.target.definitions.forms import Name
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import create_tables


def set_aside(
    target: TargetSection, cluster_id: int, replication: str, names: Sequence[Name], reason: str, start: int
) -> list[AsideTable]:
    """Set `names` aside from the checkpoint on (`start` if there is none yet). Returns the rows as stored.

    Raises LeaseHeld while another process applies. Raises CheckpointConflict if the checkpoint row belongs to another
    replication, or if it matches no state of the source and no Binlake window is open.
    """
    schema = target.checkpoint_schema
    with closing(TargetSession(target)) as session:
        create_tables(session, schema)
        with open_claimed_transaction(session, target, [replication]):
            table = CheckpointTable(schema, cluster_id)
            checkpoint = table.read(session, lock=True)
            require_owner(session, schema, cluster_id, replication)
            if checkpoint is not None:
                _require_state(session, schema, cluster_id, replication, checkpoint)
            since = start if checkpoint is None else checkpoint.commit_ts
            new = [AsideTable(db, name, since, "command", reason) for db, name in names]
            write_aside(session, schema, cluster_id, replication, new)
            if checkpoint is not None:
                table.write(session, checkpoint.with_consistent(consistent=False))
        aside = read_aside(session, schema, cluster_id)
    return [aside[fold_pair(name)] for name in names]


def _require_state(
    session: TargetSession, schema: str, cluster_id: int, replication: str, checkpoint: Checkpoint
) -> None:
    """Require a known reason if `consistent` is false, so that it later becomes true only when it really is."""
    progress = read_progress(session, schema, replication)
    if progress is None and checkpoint.consistent:
        # A consistent checkpoint of another writer: no row above it was written.
        write_progress(session, schema, TargetProgress(replication, cluster_id, None, None, None, checkpoint.commit_ts))
    if progress is not None and progress.is_open:
        return
    if not is_settled(checkpoint, progress, read_aside(session, schema, cluster_id)):
        raise CheckpointConflict(
            "the target matches no state of the source: a rollback wrote to it, or another writer was interrupted",
            where={"commit_ts": checkpoint.commit_ts, "task": replication},
            hint="let the next window finish first; if only this table blocks it, set target.on-table-error to"
            " set-aside for that window",
        )
