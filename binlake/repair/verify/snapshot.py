"""A consistent snapshot of a server, with its checkpoint read in the same transaction.

A target in the middle of a window (`consistent` false) cannot be compared: Binlake waits or refuses (DESIGN 3.8). The
transaction writes nothing, and ends if a DDL waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from binlake.config.servers import TargetSection
from binlake.errors import ConfigError, Transient
from binlake.target.claim.aside import AsideTables, is_settled, read_aside
from binlake.target.claim.checkpointrow import Checkpoint, CheckpointTable
from binlake.target.claim.progress import read_progress
from binlake.target.session.session import TargetSession

_ASK_EVERY_S = 0.5
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_WAITING = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock%'"


@dataclass(frozen=True)
class TargetSnapshot:
    """A session in a transaction, and the checkpoint in it. Tables set `aside` are not at that checkpoint."""

    session: TargetSession
    checkpoint: Checkpoint
    aside: AsideTables = field(default_factory=dict)

    def require_no_waiting_ddl(self) -> None:
        """Raises Transient when a DDL waits for a table that this transaction has read."""
        if int(self.session.fetch_rows(_WAITING)[0][0]):
            raise Transient(
                "a DDL waits for a table that is being compared: the comparison stops to let it run",
                hint="run it again: chunks found equal at the same checkpoint are not read again",
            )


@contextmanager
def open_target_snapshot(
    target: TargetSection, cluster_id: int, replication: str, wait_s: float = 0.0
) -> Iterator[TargetSnapshot]:
    """A snapshot of the target between two windows of `replication`. Waits for it up to `wait_s` seconds.

    Raises ConfigError without a checkpoint, Transient inside a window, TargetUnavailable.
    """
    with closing(TargetSession(target)) as session:
        session.execute(_ISOLATION)
        yield _wait_for_checkpoint(session, target, cluster_id, replication, time.monotonic() + wait_s)


def _wait_for_checkpoint(
    session: TargetSession, target: TargetSection, cluster_id: int, replication: str, deadline: float
) -> TargetSnapshot:
    schema = target.checkpoint_schema
    table = CheckpointTable(target.checkpoint_schema, cluster_id)
    while True:
        session.execute(_SNAPSHOT)
        checkpoint = table.read(session)
        if checkpoint is None:
            raise ConfigError(
                "the target has no checkpoint: nothing was applied to it", where={"target": session.place}
            )
        aside = read_aside(session, schema, cluster_id)
        # A drainer's target has no progress table to read.
        if is_settled(checkpoint, read_progress(session, schema, replication) if aside else None, aside):
            return TargetSnapshot(session, checkpoint, aside)
        session.execute("ROLLBACK")
        if time.monotonic() >= deadline:
            raise build_not_consistent_error(checkpoint)
        time.sleep(_ASK_EVERY_S)


def build_not_consistent_error(checkpoint: Checkpoint) -> Transient:
    """The error for a target in the middle of a window."""
    return Transient(
        "the target is inside a window (consistent = false): it does not equal the source at any commit_ts",
        where={"commit_ts": checkpoint.commit_ts},
        hint="wait for the window to end (--wait SECONDS), or finish it: `binlake stage finalize`",
    )


@contextmanager
def open_source_snapshot(source: TargetSection, ts: int, *, stands_still: bool) -> Iterator[TargetSession]:
    """A session that reads the source at commit_ts `ts`: TiDB by `tidb_snapshot`, other servers in their present state.

    Raises ConfigError for a server without such snapshots, unless the operator states that it `stands_still` at `ts`.
    """
    with closing(TargetSession(source)) as session:
        if "tidb" in str(session.fetch_rows("SELECT VERSION()")[0][0]).lower():
            session.execute(f"SET SESSION tidb_snapshot = '{ts}'")
        elif stands_still:
            session.execute(_ISOLATION)
            session.execute(_SNAPSHOT)
        else:
            raise ConfigError(
                "this source cannot be read as of a commit_ts, only in its present state",
                where={"source": session.place, "commit_ts": ts},
                hint="stop its writers, let the target reach its last commit, then use --source-stands-still",
            )
        yield session
