"""The row of the table `checkpoint`, Binlake's own record of what it wrote there, and the tables set aside beside it.

- `checkpoint` is the row of the original (TiDB's drainer): everything at or below commitTS is downstream, and if
  `consistent` is true, the target equals the source at exactly commitTS (invariant 8). Its JSON has the original's
  format: numbers stay numbers, and unknown keys are kept (S3-05, S3-06).
- `binlake_position` has the commitTS that Binlake wrote last, in the transaction that wrote it. A row that says another
  one was moved by other hands, and is not believed until `binlake checkpoint adopt` (R-43).
- Tables that are set aside are recorded here, so the decision is durable (U-16). Their changes stay in the lake. At the
  target they are skipped, but recorded in the ledger, and the checkpoint has `consistent=false` until `binlake table
  back` has made the table equal to the source's again (invariants 8, 11).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from binlake import tso
from binlake.errors import CheckpointConflict, CheckpointMoved, TargetRefused
from binlake.rows.schema.forms import fold_pair
from binlake.statements.batch import StatementBatch, parse_statement_table
from binlake.statements.literal import quote_qualified_name
from binlake.target.claim.progress import TargetProgress
from binlake.target.definitions.forms import Name
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import TargetSession

_REASON = 4000
"""How many characters of a reason are stored."""


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

    def read(self, session: TargetSession, *, lock: bool = False) -> Checkpoint | None:
        """The cluster's checkpoint, or None when the table or the row is missing. Cluster 0 reads the only row.

        Raises CheckpointConflict for an unreadable row, or several rows for cluster 0; CheckpointMoved when the row is
        not as Binlake wrote it.
        """
        return self.read_stored(session, lock=lock).require_unmoved(self._schema)

    def read_stored(self, session: TargetSession, *, lock: bool = False) -> StoredCheckpoint:
        """As `read`, but the row is returned even if it was moved."""
        rows, recorded = self._read_locked(session) if lock else self._read_together(session)
        if len(rows) > 1:
            raise CheckpointConflict("the checkpoint table has rows of several clusters", hint="name the cluster id")
        checkpoint = Checkpoint.from_json(rows[0]) if rows else None
        return StoredCheckpoint(self._cluster_id, checkpoint, recorded[0] if len(recorded) == 1 else None)

    def write(self, session: TargetSession, checkpoint: Checkpoint) -> None:
        """Write the row, as the original does, and beside it what was written."""
        self._write_record(session, checkpoint.commit_ts)
        session.write(
            f"REPLACE INTO {self._name} (clusterID, checkPoint) VALUES (%s, %s)",
            (self._cluster_id, checkpoint.to_json()),
        )

    def accept(self, session: TargetSession) -> None:
        """From now on believe the row as it is; without a row, the target starts anew."""
        checkpoint = self.read_stored(session, lock=True).checkpoint
        if checkpoint is not None:
            self._write_record(session, checkpoint.commit_ts)
        else:
            session.write(f"DELETE FROM {self._record} WHERE clusterID = %s", (self._cluster_id,))

    def _write_record(self, session: TargetSession, commit_ts: int) -> None:
        session.write(
            f"REPLACE INTO {self._record} (clusterID, commitTS) VALUES (%s, %s)", (self._cluster_id, commit_ts)
        )

    @property
    def _condition(self) -> str:
        return f" WHERE clusterID = {self._cluster_id}" if self._cluster_id else ""

    def _read_together(self, session: TargetSession) -> tuple[list[str], list[int]]:
        """The rows of both tables in one statement, hence of one moment: another process may write them meanwhile."""
        sql = f"SELECT checkPoint, NULL FROM {self._name}{self._condition}"
        try:
            both = session.fetch_rows(f"{sql} UNION ALL SELECT NULL, commitTS FROM {self._record}{self._condition}")
        except TargetRefused as error:
            _require_missing(error)
            # A drainer, or an older version of Binlake, created the target's tables.
            return self._read_column(session, f"SELECT checkPoint FROM {self._name}{self._condition}"), []
        return [row[0] for row in both if row[1] is None], [int(row[1]) for row in both if row[1] is not None]

    def _read_locked(self, session: TargetSession) -> tuple[list[str], list[int]]:
        rows = self._read_column(session, f"SELECT checkPoint FROM {self._name}{self._condition} FOR UPDATE")
        recorded = self._read_column(session, f"SELECT commitTS FROM {self._record}{self._condition} FOR UPDATE")
        return rows, [int(commit_ts) for commit_ts in recorded]

    @staticmethod
    def _read_column(session: TargetSession, sql: str) -> list[Any]:
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
class AsideTable:
    """A table of the target that is set aside. Its changes at or below commit_ts `since` are downstream.

    `by`: `command`, or the `policy` of `target.on-table-error`. `at`: when, UTC, as the server writes it.
    """

    db: str
    table: str
    since: int
    by: Literal["command", "policy"]
    reason: str
    at: str = ""

    @property
    def name(self) -> Name:
        """(database, table) in lower case, as names are compared."""
        return fold_pair((self.db, self.table))

    def to_dict(self) -> dict[str, str]:
        """For JSON; the commit_ts as text."""
        return {"table": f"{self.db}.{self.table}", "since": str(self.since), "by": self.by, "reason": self.reason,
                "at": self.at}  # fmt: skip


AsideTables = Mapping[Name, AsideTable]
"""By `AsideTable.name`."""


def may_pass_refused(names: Iterable[Name], policy: str, aside: Collection[Name]) -> bool:
    """Whether finalize passes over a DDL of the tables `names` that the target cannot run, or sets its tables aside.

    `policy`: `target.on-table-error`; `aside`: the tables that are set aside.
    """
    return policy == "set-aside" or any(is_aside(aside, name) for name in names)


def is_aside(aside: Collection[Name], name: Name) -> bool:
    """True when the table is set aside."""
    return fold_pair(name) in aside


def read_aside(session: TargetSession, schema: str, cluster_id: int) -> dict[Name, AsideTable]:
    """The tables set aside for `cluster_id` (0: for any), by name; empty if the target has no table for them."""
    where, arguments = (" WHERE clusterID = %s", (cluster_id,)) if cluster_id else ("", ())
    table = quote_qualified_name(schema, "binlake_aside")
    sql = f"SELECT db, tbl, since, by_whom, reason, CONCAT(at) FROM {table}{where}"
    try:
        tables = session.fetch_records(AsideTable, f"{sql} ORDER BY db, tbl", arguments)
    except TargetRefused as error:
        if get_error_code(error) in MISSING:
            return {}
        raise
    return {table.name: table for table in tables}


def write_aside(
    session: TargetSession, schema: str, cluster_id: int, replication: str, tables: Iterable[AsideTable]
) -> None:
    """Record `tables` in the open transaction; the caller has proved the fence and sets `consistent=false`.

    A table that is set aside already keeps its row, because its gap begins where it was first set aside.
    """
    for table in tables:
        session.write(
            f"INSERT IGNORE INTO {quote_qualified_name(schema, 'binlake_aside')}"
            " (clusterID, db, tbl, task, since, by_whom, reason) VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (cluster_id, table.db, table.table, replication, table.since, table.by, table.reason[:_REASON]),
        )


def remove_aside(session: TargetSession, schema: str, cluster_id: int, table: AsideTable) -> None:
    """Delete the table's row, in the open transaction."""
    session.write(
        f"DELETE FROM {quote_qualified_name(schema, 'binlake_aside')} WHERE clusterID = %s AND db = %s AND tbl = %s",
        (cluster_id, table.db, table.table),
    )


def is_settled(checkpoint: Checkpoint, progress: TargetProgress | None, aside: Collection[Name]) -> bool:
    """True when the target equals the source at the checkpoint, except for the tables that are set aside.

    `progress`: that of the window last opened by the writer of this checkpoint.
    """
    if checkpoint.consistent:
        return True
    if not aside or progress is None:
        return False
    return not progress.is_open and progress.exit_ts <= checkpoint.commit_ts


def select_part_to_run(batch: StatementBatch, aside: Collection[Name]) -> StatementBatch | None:
    """The part of `batch` to run: all of it, its statements on other tables (mode ordered), or None."""
    if not aside:
        return batch
    if batch.table:
        return None if is_aside(aside, (batch.db, batch.table)) else batch
    numbers = [n for n, sql in enumerate(batch.sql) if not is_aside(aside, parse_statement_table(sql))]
    if len(numbers) == len(batch.sql):
        return batch
    if not numbers:
        return None
    # A batch counts its rows as a whole, so skipped rows are counted too.
    return replace(batch, sql=tuple(batch.sql[n] for n in numbers), expect=tuple(batch.expect[n] for n in numbers))
