"""The schema history in the lake: jobs by commit_ts in `schema_change`, whole states now and then in `schema_snapshot`.

It is read by range only: the newest snapshot at or below a ts and the jobs between (invariant 5, MISSION S0-60). A job
that a dead attempt of land appended twice is harmless: a fold passes over versions that it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.dataset as ds

from binlake.lake.control import ControlTable
from binlake.lake.paths import LakePaths
from binlake.schema import DdlJob, SchemaState

SNAPSHOT_EVERY = 512
"""Jobs after which a new snapshot is written: bounds what one read folds."""

CHANGE_SCHEMA = pa.schema(
    [
        ("schema_version", pa.int64()),
        ("commit_ts", pa.int64()),
        ("job_id", pa.int64()),
        ("action", pa.int32()),
        ("kind", pa.string()),
        ("db", pa.string()),
        ("table", pa.string()),
        ("table_id", pa.int64()),
        ("query", pa.string()),
        ("job", pa.string()),
    ]
)
SNAPSHOT_SCHEMA = pa.schema(
    [("ts", pa.int64()), ("kind", pa.string()), ("object_id", pa.int64()), ("definition", pa.string())]
)


class SchemaHistory:
    """Reads and extends the schema history of one lake."""

    def __init__(self, paths: LakePaths) -> None:
        self._changes = ControlTable(paths.table("schema_change"), CHANGE_SCHEMA, "DDL jobs in commit order")
        self._snapshots = ControlTable(paths.table("schema_snapshot"), SNAPSHOT_SCHEMA, "Schema states at a commit_ts")

    def exists(self) -> bool:
        """True when a first snapshot was written."""
        return self._snapshots.exists()

    def append(self, lo: int, hi: int, base: SchemaState | None, changes: Sequence[tuple[int, DdlJob]]) -> None:
        """Add a window's (commit_ts, job) pairs in commit order; `base` is the first snapshot, at `lo`."""
        if base is not None:
            self._snapshot(lo, base)
        self._changes.append([_row(commit_ts, job) for commit_ts, job in changes])
        if changes and self._jobs_since_snapshot(hi) > SNAPSHOT_EVERY:
            self._snapshot(hi, self.state_at(hi))

    def state_at(self, ts: int) -> SchemaState:
        """The schema after the last DDL at or before `ts`; the state of a new cluster when nothing is known."""
        at = self._snapshot_ts(ts)
        base = SchemaState()
        if at is not None:
            rows = self._snapshots.rows(where=ds.field("ts") == at)
            base = SchemaState.from_rows({(r["kind"], r["object_id"]): _triple(r) for r in rows}.values())
        return base.fold(self._between(-1 if at is None else at, ts))

    def changes(self, lo: int, hi: int) -> list[tuple[int, DdlJob]]:
        """(commit_ts, job) with lo < commit_ts <= hi, in commit order, each job once."""
        once = {job.id: (commit_ts, job) for commit_ts, job in self._between(lo, hi)}
        return sorted(once.values(), key=lambda change: (change[0], change[1].schema_version))

    def _between(self, lo: int, hi: int) -> list[tuple[int, DdlJob]]:
        where = (ds.field("commit_ts") > lo) & (ds.field("commit_ts") <= hi)
        rows = self._changes.rows(("schema_version", "commit_ts", "job"), where)
        rows.sort(key=lambda row: (row["schema_version"], row["commit_ts"]))
        return [(row["commit_ts"], DdlJob.parse(row["job"])) for row in rows]

    def _snapshot_ts(self, ts: int) -> int | None:
        where = (ds.field("ts") <= ts) & (ds.field("kind") == "state")
        return max((row["ts"] for row in self._snapshots.rows(("ts",), where)), default=None)

    def _jobs_since_snapshot(self, ts: int) -> int:
        at = self._snapshot_ts(ts)
        return len(self._changes.rows(("job_id",), ds.field("commit_ts") > (-1 if at is None else at)))

    def _snapshot(self, ts: int, state: SchemaState) -> None:
        self._snapshots.append(
            [{"ts": ts, "kind": kind, "object_id": key, "definition": text} for kind, key, text in state.to_rows()]
        )


def _triple(row: dict[str, object]) -> tuple[str, int, str]:
    return str(row["kind"]), int(str(row["object_id"])), str(row["definition"])


def _row(commit_ts: int, job: DdlJob) -> dict[str, object]:
    return {
        "schema_version": job.schema_version,
        "commit_ts": commit_ts,
        "job_id": job.id,
        "action": job.type,
        "kind": job.label,
        "db": job.schema_name,
        "table": job.table_name,
        "table_id": job.table_id,
        "query": job.query,
        "job": job.text,
    }
