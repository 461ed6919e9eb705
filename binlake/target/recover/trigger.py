"""Recovery is for one case alone: PD cannot be reached and the target's checkpoint is not consistent (S3-10, S3-12).

PD is asked first, and nothing else of the source is contacted; the target is only read.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from binlake.cluster.placement import pd_answers
from binlake.config.model import Replication
from binlake.errors import CheckpointConflict
from binlake.target.claim.aside import AsideTables, is_settled, read_aside
from binlake.target.claim.progress import Checkpoint, CheckpointTable, Progress, read_progress
from binlake.target.session.session import Session
from binlake.target.session.tables import tables_exist

State = Literal["pd-answers", "nothing-to-do", "recover"]


@dataclass(frozen=True)
class Verdict:
    """What to do, and `reason` for people.

    `pd-answers`: the source answers, the next window repairs the target. `nothing-to-do`: PD cannot be reached, and
    the target is consistent or was never begun. `recover`: PD cannot be reached, and the target is not consistent.
    `commit_ts` is the checkpoint's (0: none, or not read); `opened` the window to be finished, None when none is known.
    """

    state: State
    reason: str
    commit_ts: int = 0
    opened: Progress | None = None

    @property
    def window(self) -> tuple[int, int] | None:
        """(lo, hi) of the window to be finished."""
        return None if self.opened is None else self.opened.window


def judge_recovery(replication: Replication) -> Verdict:
    """Whether `replication` is to be recovered. Writes nothing.

    Raises ConfigError without a target, Permanent when PD answers and refuses, TargetUnavailable, TargetRefused.
    """
    replication.sql_target(hint="without one there is nothing to recover")
    if pd_answers(replication.source):
        return Verdict("pd-answers", "PD answers: the next window continues from what the target holds")
    checkpoint, progress, aside = _read_state(replication)
    if checkpoint is None:
        return Verdict("nothing-to-do", "PD cannot be reached; nothing was ever applied to the target")
    ts = checkpoint.commit_ts
    if is_settled(checkpoint, progress, aside):
        return Verdict(
            "nothing-to-do",
            f"PD cannot be reached; the target equals the source at {ts}{describe_exceptions(aside)}",
            ts,
        )
    opened = progress if progress is not None and progress.is_open else None
    return Verdict("recover", f"PD cannot be reached, and the target was left part-way after {ts}", ts, opened)


def describe_exceptions(aside: AsideTables) -> str:
    """The addition to a statement that the target equals the source."""
    return f", except for what is set aside: {', '.join('.'.join(name) for name in aside)}" if aside else ""


def is_consistent(replication: Replication) -> bool:
    """Whether the target certainly has no row above its checkpoint."""
    checkpoint, progress, aside = _read_state(replication)
    return checkpoint is not None and is_settled(checkpoint, progress, aside)


def require_consistent(
    replication: Replication, ran: str, *, rolled_forward: bool = False
) -> tuple[Checkpoint, AsideTables]:
    """The checkpoint after a recovery that did what `ran` says; `rolled_forward`: with everything that is landed.

    With the tables that are not at it, as they are set aside.

    Raises CheckpointConflict when rows above it may still be on the target.
    """
    checkpoint, progress, aside = _read_state(replication)
    if checkpoint is None or not is_settled(checkpoint, progress, aside):
        more = (
            "the lake ends below what was written there: bring back a newer copy of it, or wait for the source, and run"
            " this again; else compare the target with a copy of the source (verify) and fix what differs"
        )
        raise CheckpointConflict(
            f"{ran}, and rows of later windows may be on the target: its checkpoint was set back, or another writer"
            " left it",
            where={
                "commit_ts": checkpoint.commit_ts if checkpoint else "none",
                "exit_ts": progress.exit_ts if progress else "none",
            },
            hint=more if rolled_forward else "apply what is landed up to exit_ts: `binlake recover --roll-forward`",
        )
    return checkpoint, aside


def _read_state(replication: Replication) -> tuple[Checkpoint | None, Progress | None, AsideTables]:
    """The checkpoint, our own progress and what is set aside. The cluster: the configured one, else our progress's."""
    target = replication.sql_target()
    with closing(Session(target)) as session:
        schema = target.checkpoint_schema
        has_progress = tables_exist(session, schema)
        # Read both at one moment, as a finalize may be running.
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.begin()
        progress = read_progress(session, schema, replication.name) if has_progress else None
        cluster = replication.source.expected_cluster or (progress.cluster_id if progress else 0)
        aside = read_aside(session, schema, cluster) if has_progress else {}
        return CheckpointTable(schema, cluster).read(session), progress, aside
