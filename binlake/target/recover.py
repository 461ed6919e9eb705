"""Recovery is for one case only: PD cannot be reached and the target's checkpoint is not consistent (S3-10, S3-12).

PD is asked first, and nothing else of the source is contacted; to judge, the target is only read. The open window can
be finished with only the target and the relay files: no lake, no Spark, no source (S3-09).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from binlake.cluster.placement import is_pd_reachable
from binlake.config.model import Replication
from binlake.errors import CheckpointConflict, ConfigError
from binlake.target import ApplyResult, apply_window
from binlake.target.claim.checkpoint import AsideTables, Checkpoint, CheckpointTable, is_settled, read_aside
from binlake.target.claim.progress import TargetProgress, read_progress
from binlake.target.claim.writers import LoopbackMarks
from binlake.target.relay import RelayLog
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import has_tables

State = Literal["pd-answers", "nothing-to-do", "recover"]


@dataclass(frozen=True)
class RecoverVerdict:
    """What to do, with the `reason` for people.

    `pd-answers`: the source answers, and the next window repairs the target. `nothing-to-do`: PD cannot be reached, and
    the target is consistent or was never written to. `recover`: PD cannot be reached, and the target is not consistent.
    `commit_ts`: that of the checkpoint (0: no checkpoint, or not read); `opened`: the window to be finished, or None.
    """

    state: State
    reason: str
    commit_ts: int = 0
    opened: TargetProgress | None = None

    @property
    def window(self) -> tuple[int, int] | None:
        """(lo, hi) of the window to be finished."""
        return None if self.opened is None else self.opened.window


def judge_recovery(replication: Replication) -> RecoverVerdict:
    """Decide whether `replication` must be recovered. Writes nothing.

    Raises ConfigError without a target, Permanent when PD answers and refuses, TargetUnavailable, TargetRefused.
    """
    replication.require_sql_target(hint="without one there is nothing to recover")
    if is_pd_reachable(replication.source):
        return RecoverVerdict("pd-answers", "PD answers: the next window continues from the target's state")
    checkpoint, progress, aside = _read_state(replication)
    if checkpoint is None:
        return RecoverVerdict("nothing-to-do", "PD cannot be reached; nothing was ever applied to the target")
    ts = checkpoint.commit_ts
    if is_settled(checkpoint, progress, aside):
        return RecoverVerdict(
            "nothing-to-do",
            f"PD cannot be reached; the target equals the source at {ts}{describe_exceptions(aside)}",
            ts,
        )
    opened = progress if progress is not None and progress.is_open else None
    return RecoverVerdict(
        "recover", f"PD cannot be reached, and the target stopped in the middle of a window after {ts}", ts, opened
    )


def describe_exceptions(aside: AsideTables) -> str:
    """The exceptions to append to a sentence that says that the target equals the source."""
    return f", except for what is set aside: {', '.join('.'.join(name) for name in aside)}" if aside else ""


def is_consistent(replication: Replication) -> bool:
    """Whether the target certainly has no row above its checkpoint."""
    checkpoint, progress, aside = _read_state(replication)
    return checkpoint is not None and is_settled(checkpoint, progress, aside)


def require_consistent(
    replication: Replication, ran: str, *, rolled_forward: bool = False
) -> tuple[Checkpoint, AsideTables]:
    """The checkpoint after a recovery, and the tables that are set aside and so not at it.

    `ran`: what the recovery did, for the message; `rolled_forward`: it applied everything that had landed.

    Raises CheckpointConflict when rows above the checkpoint may still be on the target.
    """
    checkpoint, progress, aside = _read_state(replication)
    if checkpoint is None or not is_settled(checkpoint, progress, aside):
        more = (
            "the lake ends below the newest rows on the target: restore a newer copy of the lake, or wait for the"
            " source, and run this again; else compare the target with a copy of the source (verify) and fix the"
            " differences"
        )
        raise CheckpointConflict(
            f"{ran}, but rows of later windows may be on the target: its checkpoint was set back, or another writer"
            " was interrupted",
            where={
                "commit_ts": checkpoint.commit_ts if checkpoint else "none",
                "exit_ts": progress.exit_ts if progress else "none",
            },
            hint=more if rolled_forward else "apply the landed rows up to exit_ts: `binlake recover --roll-forward`",
        )
    return checkpoint, aside


def _read_state(replication: Replication) -> tuple[Checkpoint | None, TargetProgress | None, AsideTables]:
    """The checkpoint, our progress and the tables set aside, of the configured cluster, else of our progress's."""
    target = replication.require_sql_target()
    with closing(TargetSession(target)) as session:
        schema = target.checkpoint_schema
        has_progress = has_tables(session, schema)
        # Read all in one snapshot, as a finalize may be running.
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.begin()
        progress = read_progress(session, schema, replication.name) if has_progress else None
        cluster = replication.source.expected_cluster or (progress.cluster_id if progress else 0)
        aside = read_aside(session, schema, cluster) if has_progress else {}
        return CheckpointTable(schema, cluster).read(session), progress, aside


def finish_from_relay(replication: Replication, verdict: RecoverVerdict, log_dir: str = "") -> ApplyResult:
    """Apply the rest of the open window of `verdict`; `log_dir` overrides `relay.log-dir`.

    Raises LostRange before the first write if the files are incomplete, and what `apply_window` raises.
    """
    relay, target = RelayLog.of(replication, log_dir), replication.target
    if relay is None or target is None:
        raise ConfigError("this replication writes no relay files", hint="give --log-dir, or set `relay.log-dir`")
    opened = verdict.opened
    if opened is None or opened.window is None or opened.manifest is None:
        raise CheckpointConflict("no window is open", where={"task": replication.name})
    window = relay.find_window(opened.window, opened.manifest)
    marks = LoopbackMarks.of(replication.loopback, replication.name)
    result = apply_window(target, window.manifest, window, marks=marks)
    relay.delete_applied(result.hi)
    return result
