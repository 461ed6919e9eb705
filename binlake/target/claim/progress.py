"""The open window on the target: its bounds and manifest, the next segment, and the DDL in flight.

Sources: hazards R-04 (intents), R-16 (pinned bounds), R-22 (exit_ts), R-23 (whose checkpoint row).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from binlake.errors import CheckpointConflict
from binlake.statements.literal import qualified
from binlake.target.session.session import Session
from binlake.window.manifest import ApplyManifest

DdlState = Literal["", "intent", "done"]
_COLUMNS = (
    "task",
    "clusterID",
    "open_lo",
    "open_hi",
    "manifest",
    "exit_ts",
    "segment",
    "ddl_state",
    "ddl_commit_ts",
    "ddl_sql",
    "ddl_before",
    "ddl_expected",
)


@dataclass(frozen=True)
class Progress:
    """A row of `binlake_progress`. `open_lo` None: no window is open. `segment`: the next one to apply.

    `ddl_state` belongs to that segment: '' not begun, 'intent' maybe executed, 'done'. `ddl_before`: digest of the
    definitions before; `ddl_expected`: JSON of those expected after.
    """

    task: str
    cluster_id: int
    open_lo: int | None
    open_hi: int | None
    manifest: str | None
    exit_ts: int
    segment: int = 0
    ddl_state: DdlState = ""
    ddl_commit_ts: int | None = None
    ddl_sql: str | None = None
    ddl_before: str | None = None
    ddl_expected: str | None = None

    @classmethod
    def opened(cls, manifest: ApplyManifest, exit_ts: int = 0) -> Progress:
        """The window of `manifest`, nothing applied; `exit_ts` of the row before it, which never decreases."""
        return cls(
            manifest.replication,
            manifest.cluster_id,
            manifest.lo,
            manifest.hi,
            manifest.digest(),
            max(exit_ts, manifest.hi),
        )

    @property
    def is_open(self) -> bool:
        """True when a window was begun and not finished."""
        return self.open_lo is not None

    @property
    def window(self) -> tuple[int, int] | None:
        """(lo, hi) of the open window; None when none is open."""
        return None if self.open_lo is None or self.open_hi is None else (self.open_lo, self.open_hi)

    def is_for(self, manifest: ApplyManifest) -> bool:
        """True when the open window is exactly that of `manifest`."""
        return (self.open_lo, self.open_hi, self.manifest) == (manifest.lo, manifest.hi, manifest.digest())

    def next_segment(self) -> Progress:
        """The segment is complete."""
        return replace(self._without_ddl(), segment=self.segment + 1)

    def closed(self) -> Progress:
        """The window is complete."""
        return replace(self._without_ddl(), open_lo=None, open_hi=None, manifest=None, segment=0)

    def with_intent(self, commit_ts: int, sql: str, before: str, expected: str) -> Progress:
        """A DDL is about to be executed."""
        return replace(
            self, ddl_state="intent", ddl_commit_ts=commit_ts, ddl_sql=sql, ddl_before=before, ddl_expected=expected
        )

    def ddl_done(self) -> Progress:
        """The DDL of the segment is executed."""
        return replace(self, ddl_state="done")

    def _without_ddl(self) -> Progress:
        return replace(self, ddl_state="", ddl_commit_ts=None, ddl_sql=None, ddl_before=None, ddl_expected=None)


def read_progress(session: Session, schema: str, task: str) -> Progress | None:
    """The row of `task`; None when it never opened a window here."""
    rows = session.rows(
        f"SELECT {', '.join(_COLUMNS)} FROM {qualified(schema, 'binlake_progress')} WHERE task = %s", (task,)
    )
    return Progress(*rows[0]) if rows else None


def open_progress(session: Session, schema: str, cluster_id: int, task: str = "") -> Progress | None:
    """The row of the window that is open for `cluster_id` (0: for any): that of `task`, else of another, else None."""
    condition, arguments = (" AND clusterID = %s", (cluster_id, task)) if cluster_id else ("", (task,))
    sql = f"SELECT {', '.join(_COLUMNS)} FROM {qualified(schema, 'binlake_progress')} WHERE open_lo IS NOT NULL"
    rows = session.rows(f"{sql}{condition} ORDER BY task = %s DESC LIMIT 1", arguments)
    return Progress(*rows[0]) if rows else None


def write_progress(session: Session, schema: str, progress: Progress) -> None:
    """REPLACE the row. The caller's transaction proved the fence."""
    values = (
        progress.task,
        progress.cluster_id,
        progress.open_lo,
        progress.open_hi,
        progress.manifest,
        progress.exit_ts,
        progress.segment,
        progress.ddl_state,
        progress.ddl_commit_ts,
        progress.ddl_sql,
        progress.ddl_before,
        progress.ddl_expected,
    )
    places = ", ".join(["%s"] * len(values))
    session.write(
        f"REPLACE INTO {qualified(schema, 'binlake_progress')} ({', '.join(_COLUMNS)}) VALUES ({places})",
        values,
    )


def owner_of(session: Session, schema: str, cluster_id: int) -> str | None:
    """The task that writes the checkpoint row of `cluster_id`; None when no replication of Binlake does."""
    rows = session.rows(f"SELECT task FROM {qualified(schema, 'binlake_owner')} WHERE clusterID = %s", (cluster_id,))
    return str(rows[0][0]) if rows else None


def require_owner(session: Session, schema: str, manifest: ApplyManifest) -> None:
    """The checkpoint row is ours or free. Raises CheckpointConflict when another replication owns it (R-23)."""
    owner = owner_of(session, schema, manifest.cluster_id)
    if owner not in (None, manifest.replication):
        raise CheckpointConflict(
            f"the checkpoint row belongs to the replication {owner}",
            where={"cluster": manifest.cluster_id, "schema": schema, "task": manifest.replication},
            hint="give this replication a target.checkpoint-schema of its own, or `binlake checkpoint adopt`",
        )


def take_ownership(session: Session, schema: str, cluster_id: int, task: str, config_hash: str) -> None:
    """Write the owner of the checkpoint row."""
    session.write(
        f"REPLACE INTO {qualified(schema, 'binlake_owner')} (clusterID, task, config_hash) VALUES (%s, %s, %s)",
        (cluster_id, task, config_hash),
    )
