"""Releases an open window that is blocked by a DDL which the target refuses, so that it can be derived again (S4-46).

The target then equals the source at the checkpoint, as between any two segments: everything before the DDL is applied,
and the intent's evidence proves that the DDL had no effect. Without this proof the release is refused.
"""

from __future__ import annotations

import json
from contextlib import closing

from binlake.config.target import TargetSection
from binlake.errors import CheckpointConflict
from binlake.target.claim.checkpointrow import CheckpointTable
from binlake.target.claim.claim import open_claimed_transaction
from binlake.target.claim.progress import TargetProgress, read_progress, write_progress
from binlake.target.ddl.intents import DdlIntent
from binlake.target.ddl.proof import RenameMarker, judge, read_evidence
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import has_tables


def release_ddl(target: TargetSection, cluster_id: int, replication: str, commit_ts: int) -> tuple[TargetProgress, int]:
    """Release the window. Returns its progress before, and the checkpoint at which the next window starts.

    Raises CheckpointConflict unless the window of `replication` is blocked by the DDL at `commit_ts`, LeaseHeld while
    another process applies.
    """
    with closing(TargetSession(target)) as session:
        if not has_tables(session, target.checkpoint_schema):
            raise CheckpointConflict("no window was ever opened on this target", where={"target": session.place})
        with open_claimed_transaction(session, target, [replication]):
            progress = _read_refused_ddl(session, target, replication, commit_ts)
            _require_untouched(session, target, progress)
            checkpoint = CheckpointTable(target.checkpoint_schema, cluster_id).read(session, lock=True)
            if checkpoint is None or not (progress.open_lo or 0) <= checkpoint.commit_ts < commit_ts:
                raise CheckpointConflict(
                    "the checkpoint is not before the DDL", where={"commit_ts": commit_ts, "checkpoint": checkpoint}
                )
            write_progress(session, target.checkpoint_schema, progress.with_window_closed())
        return progress, checkpoint.commit_ts


def _read_refused_ddl(
    session: TargetSession, target: TargetSection, replication: str, commit_ts: int
) -> TargetProgress:
    """The progress of the open window, which must be at the intent of that DDL. Raises CheckpointConflict."""
    progress = read_progress(session, target.checkpoint_schema, replication)
    if progress is None or not progress.is_open:
        raise CheckpointConflict(
            "no window is open: nothing is pinned",
            where={"task": replication},
            hint="run `binlake window run`; after a change of the choice about a DDL, first run `binlake stage merge`"
            " for the landed window of the DDL (`binlake window list` shows its bounds)",
        )
    if progress.ddl_state != "intent" or progress.ddl_commit_ts != commit_ts:
        at = (
            f"at the DDL {progress.ddl_commit_ts} ({progress.ddl_state})"
            if progress.ddl_state
            else f"in segment {progress.segment}"
        )
        raise CheckpointConflict(
            f"the open window is not blocked by that DDL: it is {at}",
            where={"commit_ts": commit_ts, "window": f"{progress.open_lo}-{progress.open_hi}"},
            hint="run finalize: it continues until a DDL is refused; then `binlake ddl show` shows that DDL",
        )
    return progress


def _require_untouched(session: TargetSession, target: TargetSection, progress: TargetProgress) -> None:
    """Require proof that the DDL had no effect on the target. Raises CheckpointConflict."""
    intent = _read_intent(progress)
    last = (progress.ddl_sql or "").rsplit(";\n", 1)[-1]
    marker = RenameMarker.of(target.checkpoint_schema, progress.replication, progress.ddl_commit_ts or 0, last)
    if marker is not None and marker.reach_verdict(session) == "before":
        return
    now = read_evidence(session, target, intent.touched, intent.after)
    before = intent.before
    if marker is None and before is not None and judge(before, now, intent.after) == "before":
        return
    raise CheckpointConflict(
        "the target is not in its state before the DDL, or cannot prove it",
        where={"ddl": (progress.ddl_sql or "")[:300], "commit_ts": progress.ddl_commit_ts,
               "tables": ", ".join(".".join(name).rstrip(".") for name in intent.touched)},
        hint="undo the DDL's effects by hand, or run finalize, which counts the DDL as done if the target shows its "
        "result",
    )  # fmt: skip


def _read_intent(progress: TargetProgress) -> DdlIntent:
    try:
        return DdlIntent.from_json(progress.ddl_expected or "")
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointConflict(
            "the record of the DDL does not name its tables",
            where={"ddl": (progress.ddl_sql or "")[:300]},
            hint="let the version of Binlake that began it finish the window",
        ) from error
