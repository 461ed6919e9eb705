"""How progress is recorded on the target: the checkpoint, the open window, its ledger, the owner.

- `checkpoint` is the row of the original (TiDB's drainer): everything at or below commitTS is downstream, and if
  `consistent` is true, the target equals the source at exactly commitTS (invariant 8). Its JSON has the original's
  format: numbers stay numbers, and unknown keys are kept (S3-05, S3-06).
- `binlake_progress` describes the open window: its bounds and manifest, the next segment, and the DDL in flight
  (hazards R-04 intents, R-16 pinned bounds, R-22 exit_ts).
- `binlake_ledger` has a row per batch, written in the batch's own transaction (invariant 9, hazards R-17).
- `binlake_owner` says which replication writes the checkpoint row (R-23).
- `binlake_position` has the commitTS that Binlake wrote last, in the transaction that wrote it. A row that says another
  one was moved by other hands, and is not believed until `binlake checkpoint adopt` (R-43).

All these rows are written in transactions of a `TargetClaim`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple

from binlake import tso
from binlake.errors import CheckpointConflict, CheckpointMoved, TargetRefused
from binlake.statements.batch import StatementBatch
from binlake.statements.literal import quote_qualified_name
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import Session
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
class Checkpoint:
    """A checkpoint. `ts_map` as in the original; `raw`: the JSON it was read from."""

    commit_ts: int
    consistent: bool
    ts_map: Mapping[str, int] = field(default_factory=dict)
    schema_version: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def from_json(cls, text: str) -> Checkpoint:
        """Parse the column checkPoint. Raises CheckpointConflict when it is not the original's JSON."""
        try:
            raw = json.loads(text)
            return cls(
                int(raw["commitTS"]),
                bool(raw.get("consistent", False)),
                dict(raw.get("ts-map") or {}),
                int(raw.get("schema-version") or 0),
                raw,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointConflict(
                f"the checkpoint row cannot be read: {error!r}",
                where={"checkPoint": text[:200]},
                hint='correct it by hand: {"consistent":false,"commitTS":…,"ts-map":{}}',
            ) from error

    def to_json(self) -> str:
        """JSON for the column: the keys that were read, in their order, with the current values."""
        value: dict[str, Any] = {"consistent": False, "commitTS": 0, "ts-map": {}, **self.raw}
        value |= {"consistent": self.consistent, "commitTS": self.commit_ts, "ts-map": dict(self.ts_map)}
        if self.schema_version or "schema-version" in value:
            value["schema-version"] = self.schema_version
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def move_to(self, commit_ts: int, schema_version: int, *, consistent: bool) -> Checkpoint:
        """The checkpoint moved to `commit_ts`; the schema version never decreases (tidb-binlog 5.8)."""
        version = max(self.schema_version, schema_version)
        return Checkpoint(commit_ts, consistent, self.ts_map, version, self.raw)

    def with_consistent(self, *, consistent: bool) -> Checkpoint:
        """The same position with another `consistent`."""
        return Checkpoint(self.commit_ts, consistent, self.ts_map, self.schema_version, self.raw)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A cluster's checkpoint row as found, and the commitTS that Binlake wrote last (None: it never did)."""

    cluster_id: int
    checkpoint: Checkpoint | None
    recorded: int | None

    @property
    def is_moved(self) -> bool:
        """True when another hand moved or removed the row since Binlake wrote it."""
        found = None if self.checkpoint is None else self.checkpoint.commit_ts
        return self.recorded is not None and found != self.recorded

    def require_unmoved(self, schema: str) -> Checkpoint | None:
        """The checkpoint. Raises CheckpointMoved when `is_moved`."""
        if self.recorded is None or not self.is_moved:
            return self.checkpoint
        found = None if self.checkpoint is None else self.checkpoint.commit_ts
        raise CheckpointMoved(
            f"the checkpoint row is not as Binlake wrote it: {_describe_move(self.recorded, found)}",
            where={"schema": schema, "cluster": self.cluster_id, "written": self.recorded,
                   "found": "no row" if found is None else found},
            hint=f"set its commitTS back to {self.recorded}; or, if the target really is where the row says:"
            f" `binlake checkpoint adopt --replication FILE --cluster-id {self.cluster_id}`",
        )  # fmt: skip


def _describe_move(recorded: int, found: int | None) -> str:
    if found is None:
        return f"it was at {recorded} and is gone"
    seconds = (tso.extract_physical(found) - tso.extract_physical(recorded)) / 1000
    way = "ahead of" if found > recorded else "behind"
    return f"commitTS {found} is {abs(seconds):.3f} s {way} {recorded}, the last one written"


class CheckpointTable:
    """The table `schema`.checkpoint, for one cluster, with Binlake's own record of what it wrote there."""

    def __init__(self, schema: str, cluster_id: int) -> None:
        self._schema = schema
        self._name = quote_qualified_name(schema, "checkpoint")
        self._record = quote_qualified_name(schema, "binlake_position")
        self._cluster_id = cluster_id

    def read(self, session: Session, *, lock: bool = False) -> Checkpoint | None:
        """The cluster's checkpoint, or None when the table or the row is missing. Cluster 0 reads the only row.

        Raises CheckpointConflict for an unreadable row, or several rows for cluster 0; CheckpointMoved when the row is
        not as Binlake wrote it.
        """
        return self.read_stored(session, lock=lock).require_unmoved(self._schema)

    def read_stored(self, session: Session, *, lock: bool = False) -> StoredCheckpoint:
        """As `read`, but the row is returned even if it was moved."""
        rows, recorded = self._read_locked(session) if lock else self._read_together(session)
        if len(rows) > 1:
            raise CheckpointConflict("the checkpoint table has rows of several clusters", hint="name the cluster id")
        checkpoint = Checkpoint.from_json(rows[0]) if rows else None
        return StoredCheckpoint(self._cluster_id, checkpoint, recorded[0] if len(recorded) == 1 else None)

    def write(self, session: Session, checkpoint: Checkpoint) -> None:
        """Write the row, as the original does, and beside it what was written."""
        self._write_record(session, checkpoint.commit_ts)
        session.write(
            f"REPLACE INTO {self._name} (clusterID, checkPoint) VALUES (%s, %s)",
            (self._cluster_id, checkpoint.to_json()),
        )

    def accept(self, session: Session) -> None:
        """From now on believe the row as it is; without a row, the target starts anew."""
        checkpoint = self.read_stored(session, lock=True).checkpoint
        if checkpoint is not None:
            self._write_record(session, checkpoint.commit_ts)
        else:
            session.write(f"DELETE FROM {self._record} WHERE clusterID = %s", (self._cluster_id,))

    def _write_record(self, session: Session, commit_ts: int) -> None:
        session.write(
            f"REPLACE INTO {self._record} (clusterID, commitTS) VALUES (%s, %s)", (self._cluster_id, commit_ts)
        )

    @property
    def _condition(self) -> str:
        return f" WHERE clusterID = {self._cluster_id}" if self._cluster_id else ""

    def _read_together(self, session: Session) -> tuple[list[str], list[int]]:
        """The rows of both tables in one statement, hence of one moment: another process may write them meanwhile."""
        sql = f"SELECT checkPoint, NULL FROM {self._name}{self._condition}"
        try:
            both = session.fetch_rows(f"{sql} UNION ALL SELECT NULL, commitTS FROM {self._record}{self._condition}")
        except TargetRefused as error:
            _require_missing(error)
            # A drainer, or an older version of Binlake, created the target's tables.
            return self._read_column(session, f"SELECT checkPoint FROM {self._name}{self._condition}"), []
        return [row[0] for row in both if row[1] is None], [int(row[1]) for row in both if row[1] is not None]

    def _read_locked(self, session: Session) -> tuple[list[str], list[int]]:
        rows = self._read_column(session, f"SELECT checkPoint FROM {self._name}{self._condition} FOR UPDATE")
        recorded = self._read_column(session, f"SELECT commitTS FROM {self._record}{self._condition} FOR UPDATE")
        return rows, [int(commit_ts) for commit_ts in recorded]

    @staticmethod
    def _read_column(session: Session, sql: str) -> list[Any]:
        """The values of `sql`; none if its table is missing."""
        try:
            return session.fetch_column(sql)
        except TargetRefused as error:
            _require_missing(error)
            return []


def _require_missing(error: TargetRefused) -> None:
    if get_error_code(error) not in MISSING:
        raise error


@dataclass(frozen=True)
class Progress:
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
    def of_window(cls, manifest: ApplyManifest, exit_ts: int = 0) -> Progress:
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

    def is_for(self, manifest: ApplyManifest) -> bool:
        """True when the open window is exactly that of `manifest`."""
        return (self.open_lo, self.open_hi, self.manifest) == (manifest.lo, manifest.hi, manifest.compute_digest())

    def with_segment_applied(self) -> Progress:
        """The progress after the segment is complete."""
        return replace(self._without_ddl(), segment=self.segment + 1)

    def with_window_closed(self) -> Progress:
        """The progress after the window is complete."""
        return replace(self._without_ddl(), open_lo=None, open_hi=None, manifest=None, segment=0)

    def with_intent(self, commit_ts: int, sql: str, before: str, expected: str) -> Progress:
        """The progress before the segment's DDL is executed."""
        return replace(
            self, ddl_state="intent", ddl_commit_ts=commit_ts, ddl_sql=sql, ddl_before=before, ddl_expected=expected
        )

    def with_ddl_done(self) -> Progress:
        """The progress after the segment's DDL was executed."""
        return replace(self, ddl_state="done")

    def _without_ddl(self) -> Progress:
        return replace(self, ddl_state="", ddl_commit_ts=None, ddl_sql=None, ddl_before=None, ddl_expected=None)


def read_progress(session: Session, schema: str, replication: str) -> Progress | None:
    """The row of `replication`; None when it never opened a window here."""
    rows = session.fetch_records(Progress, f"{_select_progress(schema)} WHERE task = %s", (replication,))
    return rows[0] if rows else None


def read_open_progress(session: Session, schema: str, cluster_id: int, replication: str = "") -> Progress | None:
    """The row of an open window of `cluster_id` (0: of any cluster), preferring that of `replication`, or None."""
    condition, arguments = (" AND clusterID = %s", (cluster_id, replication)) if cluster_id else ("", (replication,))
    sql = f"{_select_progress(schema)} WHERE open_lo IS NOT NULL{condition} ORDER BY task = %s DESC LIMIT 1"
    rows = session.fetch_records(Progress, sql, arguments)
    return rows[0] if rows else None


def write_progress(session: Session, schema: str, progress: Progress) -> None:
    """REPLACE the row. The caller's transaction must have proved the fence."""
    table, places = quote_qualified_name(schema, "binlake_progress"), ", ".join(["%s"] * len(_PROGRESS_COLUMNS))
    session.write(
        f"REPLACE INTO {table} ({', '.join(_PROGRESS_COLUMNS)}) VALUES ({places})",
        astuple(progress),
    )


def _select_progress(schema: str) -> str:
    return f"SELECT {', '.join(_PROGRESS_COLUMNS)} FROM {quote_qualified_name(schema, 'binlake_progress')}"


def read_owner(session: Session, schema: str, cluster_id: int) -> str | None:
    """The replication that writes the checkpoint row of `cluster_id`; None when no replication of Binlake does."""
    sql = f"SELECT task FROM {quote_qualified_name(schema, 'binlake_owner')} WHERE clusterID = %s"
    owner: str | None = session.fetch_value(sql, (cluster_id,))
    return owner


def require_owner(
    session: Session, schema: str, cluster_id: int, replication: str, hint: str = "run it for that replication"
) -> None:
    """Raises CheckpointConflict when the checkpoint row belongs to another replication than `replication`."""
    owner = read_owner(session, schema, cluster_id)
    if owner not in (None, replication):
        raise CheckpointConflict(
            f"the checkpoint row belongs to the replication {owner}",
            where={"cluster": cluster_id, "schema": schema, "task": replication},
            hint=hint,
        )


def take_ownership(session: Session, schema: str, cluster_id: int, replication: str, config_hash: str) -> None:
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


class Ledger:
    """The ledger of the window (lo, hi] of `replication`: `write` stores rows, `add` collects them for `flush`."""

    def __init__(self, schema: str, replication: str, lo: int, hi: int) -> None:
        self._schema = schema
        self._key = (replication, lo, hi)
        self._pending: list[tuple[StatementBatch, AppliedAs]] = []

    @classmethod
    def of(cls, schema: str, manifest: ApplyManifest) -> Ledger:
        """The ledger of the manifest's window."""
        return cls(schema, manifest.replication, manifest.lo, manifest.hi)

    def read_digests(
        self, session: Session, segment: int, only: tuple[int, int] | None = None
    ) -> dict[tuple[int, int], str]:
        """(phase, batch) -> digest of the segment's recorded row batches, or of the batch `only`."""
        sql = (
            f"SELECT phase, batch, digest FROM {quote_qualified_name(self._schema, 'binlake_ledger')}"
            " WHERE task = %s AND lo = %s AND hi = %s AND segment = %s AND phase <> 0"
        )
        sql += " AND phase = %s AND batch = %s" if only else ""
        rows = session.fetch_records(_LedgerRow, sql, (*self._key, segment, *(only or ())))
        return {(row.phase, row.batch): row.digest for row in rows}

    def add(self, session: Session, batch: StatementBatch, applied_as: AppliedAs) -> None:
        """Collect the row of a batch that was executed or skipped in the open transaction."""
        self._pending.append((batch, applied_as))
        if len(self._pending) >= _LEDGER_ROWS_A_STATEMENT:
            self.flush(session)

    def flush(self, session: Session) -> None:
        """Write the collected rows, in the same transaction, with few statements."""
        if self._pending:
            self.write(session, self._pending)
            self._pending.clear()

    def write(self, session: Session, batches: Sequence[tuple[StatementBatch, AppliedAs]]) -> None:
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

    def prune(self, session: Session) -> None:
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
