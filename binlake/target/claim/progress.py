"""How progress is recorded on the target beside the checkpoint: the open window, its ledger, the owner.

- `binlake_progress` describes the open window: its bounds and manifest, the next segment, and the DDL in flight
  (hazards R-04 intents, R-16 pinned bounds, R-22 exit_ts).
- `binlake_ledger` has a row per batch, written in the batch's own transaction (invariant 9, hazards R-17).
- `binlake_owner` says which replication writes the checkpoint row (R-23).

All these rows are written in transactions of a `TargetClaim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from enum import IntEnum
from typing import Literal, NamedTuple

from binlake.errors import CheckpointConflict, CheckpointMoved
from binlake.statements.batch import StatementBatch
from binlake.statements.literal import quote_qualified_name
from binlake.target.session.session import TargetSession
from binlake.window.manifest import ApplyManifest

DdlState = Literal["", "intent", "done"]
_PROGRESS_COLUMNS = (
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
_LEDGER_ROWS_A_STATEMENT = 500


@dataclass(frozen=True)
class TargetProgress:
    """A row of `binlake_progress`. `open_lo` None: no window is open. `segment`: the next segment to apply.

    `ddl_state` of that segment: '' (not begun), 'intent' (may have been executed) or 'done'. `ddl_before`: digest of
    the definitions before the DDL; `ddl_expected`: JSON of those expected after it.
    """

    replication: str
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
    def of_window(cls, manifest: ApplyManifest, exit_ts: int = 0) -> TargetProgress:
        """The window of `manifest` before its first segment. `exit_ts` of the previous row never decreases."""
        return cls(
            manifest.replication,
            manifest.cluster_id,
            manifest.lo,
            manifest.hi,
            manifest.compute_digest(),
            max(exit_ts, manifest.hi),
        )

    @property
    def is_open(self) -> bool:
        """True when a window was started and not finished."""
        return self.open_lo is not None

    @property
    def window(self) -> tuple[int, int] | None:
        """(lo, hi) of the open window; None when none is open."""
        return None if self.open_lo is None or self.open_hi is None else (self.open_lo, self.open_hi)

    def describe_window(self) -> str:
        """The window, the next segment and the manifest as one text."""
        window = "none" if self.window is None else "{}-{}".format(*self.window)
        return f"window {window}, segment {self.segment}, manifest {self.manifest or 'none'}"

    def is_for(self, manifest: ApplyManifest) -> bool:
        """True when the open window is exactly that of `manifest`."""
        return (self.open_lo, self.open_hi, self.manifest) == (manifest.lo, manifest.hi, manifest.compute_digest())

    def with_segment_applied(self) -> TargetProgress:
        """The progress after the segment is complete."""
        return replace(self._without_ddl(), segment=self.segment + 1)

    def with_window_closed(self) -> TargetProgress:
        """The progress after the window is complete."""
        return replace(self._without_ddl(), open_lo=None, open_hi=None, manifest=None, segment=0)

    def with_intent(self, commit_ts: int, sql: str, before: str, expected: str) -> TargetProgress:
        """The progress before the segment's DDL is executed."""
        return replace(
            self, ddl_state="intent", ddl_commit_ts=commit_ts, ddl_sql=sql, ddl_before=before, ddl_expected=expected
        )

    def with_ddl_done(self) -> TargetProgress:
        """The progress after the segment's DDL was executed."""
        return replace(self, ddl_state="done")

    def _without_ddl(self) -> TargetProgress:
        return replace(self, ddl_state="", ddl_commit_ts=None, ddl_sql=None, ddl_before=None, ddl_expected=None)


class _Written(NamedTuple):
    """What `binlake_opened` has of a progress row."""

    progress: str
    exit_ts: int

    def __str__(self) -> str:
        return f"{self.progress}, exit_ts {self.exit_ts}"


def read_progress(session: TargetSession, schema: str, replication: str) -> TargetProgress | None:
    """The row of `replication`; None when it never opened a window here."""
    rows = session.fetch_records(TargetProgress, f"{_select_progress(schema)} WHERE task = %s", (replication,))
    return rows[0] if rows else None


def read_open_progress(
    session: TargetSession, schema: str, cluster_id: int, replication: str = ""
) -> TargetProgress | None:
    """The row of an open window of `cluster_id` (0: of any cluster), preferring that of `replication`, or None."""
    condition, arguments = (" AND clusterID = %s", (cluster_id, replication)) if cluster_id else ("", (replication,))
    sql = f"{_select_progress(schema)} WHERE open_lo IS NOT NULL{condition} ORDER BY task = %s DESC LIMIT 1"
    rows = session.fetch_records(TargetProgress, sql, arguments)
    return rows[0] if rows else None


def write_progress(session: TargetSession, schema: str, progress: TargetProgress) -> None:
    """REPLACE the row. The caller's transaction must have proved the fence."""
    table, places = quote_qualified_name(schema, "binlake_progress"), ", ".join(["%s"] * len(_PROGRESS_COLUMNS))
    session.write(
        f"REPLACE INTO {table} ({', '.join(_PROGRESS_COLUMNS)}) VALUES ({places})",
        astuple(progress),
    )
    record = quote_qualified_name(schema, "binlake_opened")
    session.write(
        f"REPLACE INTO {record} (clusterID, task, progress, exit_ts) VALUES (%s, %s, %s, %s)",
        (progress.cluster_id, progress.replication, progress.describe_window(), progress.exit_ts),
    )


def require_own_progress(
    session: TargetSession, schema: str, cluster_id: int, replication: str
) -> TargetProgress | None:
    """The row of `replication`. Raises CheckpointMoved when it is not as Binlake wrote it last.

    The part about a DDL is not compared: an operator may set `ddl_state`. A greater exit_ts only makes writes safer.
    For a transaction that has locked the checkpoint row.
    """
    progress = read_progress(session, schema, replication)
    record = quote_qualified_name(schema, "binlake_opened")
    records = session.fetch_records(
        _Written,
        f"SELECT progress, exit_ts FROM {record} WHERE clusterID = %s AND task = %s",
        (cluster_id, replication),
    )
    found = _Written("no row", 0) if progress is None else _Written(progress.describe_window(), progress.exit_ts)
    if records and (records[0].progress != found.progress or records[0].exit_ts > found.exit_ts):
        raise CheckpointMoved(
            "the row of binlake_progress is not as Binlake wrote it, so which rows of its window are at the target is"
            " not known",
            where={"schema": schema, "task": replication, "written": str(records[0]), "found": str(found)},
            hint="restore the row; or, if the target equals the source at its checkpoint:"
            f" `binlake checkpoint adopt --replication FILE --cluster-id {cluster_id}`",
        )
    return progress


def forget_written_progress(session: TargetSession, schema: str, cluster_id: int) -> None:
    """From now on believe the row of `binlake_progress` as it is, or that it is missing."""
    session.write(f"DELETE FROM {quote_qualified_name(schema, 'binlake_opened')} WHERE clusterID = %s", (cluster_id,))


def _select_progress(schema: str) -> str:
    return f"SELECT {', '.join(_PROGRESS_COLUMNS)} FROM {quote_qualified_name(schema, 'binlake_progress')}"


def read_owner(session: TargetSession, schema: str, cluster_id: int) -> str | None:
    """The replication that writes the checkpoint row of `cluster_id`; None when no replication of Binlake does."""
    sql = f"SELECT task FROM {quote_qualified_name(schema, 'binlake_owner')} WHERE clusterID = %s"
    owner: str | None = session.fetch_value(sql, (cluster_id,))
    return owner


def require_owner(
    session: TargetSession, schema: str, cluster_id: int, replication: str, hint: str = "run it for that replication"
) -> None:
    """Raises CheckpointConflict when the checkpoint row belongs to another replication than `replication`."""
    owner = read_owner(session, schema, cluster_id)
    if owner not in (None, replication):
        raise CheckpointConflict(
            f"the checkpoint row belongs to the replication {owner}",
            where={"cluster": cluster_id, "schema": schema, "task": replication},
            hint=hint,
        )


def take_ownership(session: TargetSession, schema: str, cluster_id: int, replication: str, config_hash: str) -> None:
    """Write the owner of the checkpoint row."""
    table = quote_qualified_name(schema, "binlake_owner")
    session.write(
        f"REPLACE INTO {table} (clusterID, task, config_hash) VALUES (%s, %s, %s)",
        (cluster_id, replication, config_hash),
    )


class AppliedAs(IntEnum):
    """How a batch was applied (column `atomic`). ASIDE: it was skipped, as its table is set aside."""

    ALONE = 0
    WHOLE_SEGMENT = 1
    ASIDE = 2


class _LedgerRow(NamedTuple):
    phase: int
    batch: int
    digest: str


class WindowLedger:
    """The ledger of the window (lo, hi] of `replication`: `write` stores rows, `add` collects them for `flush`."""

    def __init__(self, schema: str, replication: str, lo: int, hi: int) -> None:
        self._schema = schema
        self._key = (replication, lo, hi)
        self._pending: list[tuple[StatementBatch, AppliedAs]] = []

    @classmethod
    def of(cls, schema: str, manifest: ApplyManifest) -> WindowLedger:
        """The ledger of the manifest's window."""
        return cls(schema, manifest.replication, manifest.lo, manifest.hi)

    def read_digests(
        self, session: TargetSession, segment: int, only: tuple[int, int] | None = None
    ) -> dict[tuple[int, int], str]:
        """(phase, batch) -> digest of the segment's recorded row batches, or of the batch `only`."""
        sql = (
            f"SELECT phase, batch, digest FROM {quote_qualified_name(self._schema, 'binlake_ledger')}"
            " WHERE task = %s AND lo = %s AND hi = %s AND segment = %s AND phase <> 0"
        )
        sql += " AND phase = %s AND batch = %s" if only else ""
        rows = session.fetch_records(_LedgerRow, sql, (*self._key, segment, *(only or ())))
        return {(row.phase, row.batch): row.digest for row in rows}

    def add(self, session: TargetSession, batch: StatementBatch, applied_as: AppliedAs) -> None:
        """Collect the row of a batch that was executed or skipped in the open transaction."""
        self._pending.append((batch, applied_as))
        if len(self._pending) >= _LEDGER_ROWS_A_STATEMENT:
            self.flush(session)

    def flush(self, session: TargetSession) -> None:
        """Write the collected rows, in the same transaction, with few statements."""
        if self._pending:
            self.write(session, self._pending)
            self._pending.clear()

    def write(self, session: TargetSession, batches: Sequence[tuple[StatementBatch, AppliedAs]]) -> None:
        """Write the rows of `batches`, which were executed or skipped in the open transaction."""
        values = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s, %s)"] * len(batches))
        arguments = [
            part
            for b, applied_as in batches
            for part in (*self._key, b.segment, int(b.phase), b.batch, b.digest, b.rows, int(applied_as))
        ]
        session.write(
            f"INSERT INTO {quote_qualified_name(self._schema, 'binlake_ledger')}"
            f" (task, lo, hi, segment, phase, batch, digest, row_count, atomic) VALUES {values}",
            arguments,
        )

    def prune(self, session: TargetSession) -> None:
        """Delete the rows of all windows except the one that ended at our lo.

        Called for a window that is opened, not resumed. It starts at the checkpoint, so nothing above lo is downstream,
        even if a ledger that was not restored together with the data says otherwise.
        """
        replication, lo, _ = self._key
        table = quote_qualified_name(self._schema, "binlake_ledger")
        session.write(f"DELETE FROM {table} WHERE task = %s AND (hi < %s OR hi > %s)", (replication, lo, lo))


def is_recorded(batch: StatementBatch, digests: dict[tuple[int, int], str]) -> bool:
    """True when the ledger's `digests` have the batch. Raises CheckpointConflict if another batch has its number."""
    digest = digests.get((batch.phase, batch.batch))
    if digest is not None and digest != batch.digest:
        raise CheckpointConflict(
            "the ledger has another batch with this number: the statements changed after they were applied",
            where={"table": f"{batch.db}.{batch.table}", "segment": batch.segment, "batch": batch.batch},
            hint="restore the lake's statement table: a window must be applied exactly as it was pinned",
        )
    return digest is not None
