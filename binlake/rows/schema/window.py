"""Schemas in a window: each DDL opens a segment, and a row is decoded with the schema of its commit_ts's segment
(R-19).

The position of a DDL (`compute_effective_ts`; TiDB's online DDL; captures `ddl`, `zones`, `zones_unique`): a job runs
in steps and writes its binlog with the last step. Rows that were committed before the binlog may already show an
earlier step; such rows belong after the DDL. The schema version of a transaction does not tell which rows these are: it
is the version at BEGIN, but the transaction uses each table as it is when it first touches it. The time does tell: a
row committed before a step has not seen it. Therefore Binlake places the DDL at a timestamp that no such row precedes
and at which the DDL can correctly run:

- DROP COLUMN, INDEX, PRIMARY KEY: when its first step ran. From the second step on, keys are not checked (duplicates
  are committed) and rows lack the column. None of these jobs can be cancelled once begun. No row needs the key or the
  column, because rows are found by the identity of their segment, which the table has without them.
- DROP PARTITION: when its first step ran; from then on TiDB puts rows of the range elsewhere. For rows that are still
  written into the partition, `partitions.Emptied` decides.
- Several clauses in one ALTER: when the last of them had begun, and had read the table if it copies values or builds
  an index. After that, all clauses become public or are removed in one step, and each clause that drops takes three
  more steps. Rows from there on have values in the new columns: real ones, or the values that the ALTER gives to old
  rows.
- REORGANIZE PARTITION: when it had begun to copy; rows that only the new partitions accept come later. For a table
  without a key, also for PARTITION BY and REMOVE PARTITIONING: when its first step ran, even if the job was rolled
  back, because from then on changes are logged twice (`partitions.Reorganized`).
- Every other job: at its binlog, because rows see only its last step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from binlake.errors import SchemaError
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.job import DELETE_ONLY, DELETE_REORG, PUBLIC, Action, DdlJob
from binlake.rows.schema.partitions import REARRANGING
from binlake.rows.schema.state import SchemaState

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_AT_FIRST_STEP = frozenset({Action.DROP_COLUMN, Action.DROP_INDEX, Action.DROP_PRIMARY_KEY, Action.DROP_PARTITION})
_WHEN_READY = frozenset({Action.MULTI_SCHEMA_CHANGE, Action.REORGANIZE_PARTITION})
_CLAUSES = frozenset(
    {Action.ADD_COLUMN, Action.ADD_INDEX, Action.ADD_PRIMARY_KEY, Action.MODIFY_COLUMN, Action.RENAME_INDEX,
     Action.SET_DEFAULT, Action.INDEX_VISIBILITY, Action.TABLE_COMMENT, Action.TABLE_CHARSET}
)  # fmt: skip
"""Clauses that may share one ALTER with others, besides those that drop: their steps do not show whether they do."""
_END = (1 << 63) - 1
_SETVAL = "select setval("


def compute_effective_ts(job: DdlJob, commit_ts: int) -> int:
    """The commit_ts from which on rows belong after `job`; `commit_ts`: that of its binlog."""
    if job.schema_version and logs_twice(job.type, _read_table(job)):
        return min(job.began_ts or commit_ts, commit_ts)
    if not job.took_effect:
        return commit_ts
    if job.type in _AT_FIRST_STEP:
        return min(job.began_ts or commit_ts, commit_ts)
    if job.type in _WHEN_READY:
        return min(job.ready_ts or commit_ts, commit_ts)
    return commit_ts


def compute_running_ts(job: Mapping[str, Any], table: TableDef | None = None) -> int | None:
    """`compute_effective_ts` for a running job (its JSON) of `table`; None if no row can have seen the job yet."""
    began = int(job.get("real_start_ts") or 0)
    if not began:
        return None
    kind = int(job["type"])
    if kind in _AT_FIRST_STEP or logs_twice(kind, table):
        return began
    clauses = job.get("multi_schema_info") or {}
    if kind == Action.MULTI_SCHEMA_CHANGE and not clauses.get("revertible"):
        return began
    copied = int(job.get("schema_state") or 0) in (DELETE_REORG, PUBLIC)
    return began if kind == Action.REORGANIZE_PARTITION and copied else None


def select_visible_parts(info: Mapping[str, Any] | None) -> object:
    """The parts of a table (TableInfo) that rows can see: public columns, keys and partitions. Use it only to compare.

    The definition also contains objects that a running DDL is adding; they are not public, and no row shows them.
    """
    if info is None:
        return None
    columns = [_describe_column(column) for column in info.get("cols") or () if column["state"] == PUBLIC]
    keys = [(key["id"], key["idx_name"]["O"]) for key in info.get("index_info") or () if key["state"] == PUBLIC]
    partitions = [part["id"] for part in (info.get("partition") or {}).get("definitions") or ()]
    return info.get("state", PUBLIC), sorted(columns), sorted(keys), sorted(partitions)


def _describe_column(column: Mapping[str, Any]) -> tuple[object, ...]:
    kind = column["type"]
    shape = (kind["Tp"], kind["Flen"], kind["Decimal"], kind["Charset"] or "", kind["Collate"] or "")
    return column["id"], column["name"]["O"], *shape, tuple(kind.get("Elems") or ())


def may_run_ahead(kind: int) -> bool:
    """True if rows before the binlog may have seen a step of a job, or of a clause in a job, of this `kind`."""
    return kind in _AT_FIRST_STEP or kind in _WHEN_READY or kind in _CLAUSES or kind in REARRANGING


def logs_twice(kind: int, table: TableDef | None) -> bool:
    """True if TiDB logs changes of `table` twice from the first step of a `kind` job on, and no key tells which
    ones."""
    return kind in REARRANGING and table is not None and table.find_identity().kind == "row"


def _read_table(job: DdlJob) -> TableDef | None:
    if job.type not in REARRANGING or job.table_info is None:
        return None
    return TableDef.from_json(job.table_info, DbInfo(job.schema_id, job.schema_name, "", "", {}))


@dataclass(frozen=True)
class WindowDdl:
    """A DDL of a window: its binlog as pulled and landed, and its `job` if the source's history has it.

    `schema_state` is the binlog's: 1 marks the delete-only step of DROP COLUMN. Only a `ddl` needs its job: the
    delete-only binlog has the id of a job that ends later, and the pseudo DDL of a sequence has an id that never
    exists (tidb-binlog 1.11, 1.14). `logged` is False for a job without a binlog; land chose its `commit_ts`.
    """

    commit_ts: int
    start_ts: int
    job_id: int
    schema_state: int
    query: str
    job: DdlJob | None = None
    logged: bool = True

    @classmethod
    def without_binlog(cls, job: DdlJob, commit_ts: int) -> WindowDdl:
        """The WindowDdl of a job that no binlog names; `commit_ts`: its commit_ts or an upper bound of it."""
        return cls(commit_ts, 0, job.id, 0, job.query, job, logged=False)

    @property
    def kind(self) -> Literal["ddl", "delete-only", "setval"]:
        """The kind: `ddl` opens a segment; the other two do not."""
        return classify_ddl(self.query, self.schema_state)

    @property
    def since(self) -> int:
        """The commit_ts from which on rows belong after this DDL (`binlake.rows.schema.window`)."""
        return (
            compute_effective_ts(self.job, self.commit_ts)
            if self.kind == "ddl" and self.job is not None
            else self.commit_ts
        )

    def compute_since_above(self, lo: int) -> int:
        """`since`, but at least `lo` + 1, for a window that begins above `lo`."""
        return max(self.since, lo + 1)


def classify_ddl(query: str, schema_state: int) -> Literal["ddl", "delete-only", "setval"]:
    """The kind of a DDL binlog: a real `ddl`, the extra `delete-only` one of DROP COLUMN, or a `setval` pseudo DDL."""
    if query.lstrip().lower().replace("setval (", "setval(", 1).startswith(_SETVAL):
        return "setval"
    return "delete-only" if schema_state == DELETE_ONLY else "ddl"


def sort_ddls(lo: int, ddls: Sequence[WindowDdl]) -> list[WindowDdl]:
    """The DDLs of a window above `lo` in the order in which rows see them: by `since`, then by commit_ts.

    This may move a DDL before others, but only before DDLs of other tables, because TiDB runs the jobs of one table one
    after the other.
    """
    return sorted(ddls, key=lambda ddl: (ddl.compute_since_above(lo), ddl.commit_ts))


class SchemaSpan(NamedTuple):
    """Rows with since <= commit_ts < until are decoded with `schema`."""

    since: int
    until: int
    schema: SchemaState


class WindowSchemas:
    """Schema states of one window: segment 0 has `base`; the k-th real DDL (from 1), as sorted, opens segment k.

    A DDL that changes nothing (rolled back, not supported) opens a segment with the same definitions. `lo`: the
    window's start. Raises SchemaError if a real DDL has no job.
    """

    def __init__(self, base: SchemaState, ddls: Sequence[WindowDdl], lo: int = 0) -> None:
        self.ddls = tuple(sort_ddls(lo, [ddl for ddl in ddls if ddl.kind == "ddl"]))
        self._starts = [ddl.compute_since_above(lo) for ddl in self.ddls]
        states = [base]
        for ddl in self.ddls:
            states.append(states[-1].follow(_require_job(ddl), ddl.commit_ts, base.version))
        self._states = tuple(states)

    @property
    def segments(self) -> int:
        """Number of segments: 1 + real DDLs."""
        return len(self._states)

    def iterate_spans(self) -> Iterator[SchemaSpan]:
        """The spans of all segments of the window, in order."""
        edges = [0, *self._starts, _END]
        for number, state in enumerate(self._states):
            yield SchemaSpan(edges[number], edges[number + 1], state)

    def find_segment(self, commit_ts: int) -> int:
        """The segment of `commit_ts`; a DDL's own commit_ts is in the segment that it opens, or in a later one."""
        return bisect_right(self._starts, commit_ts)

    def find_schema_of_segment(self, segment: int) -> SchemaState:
        """The schema of a segment (0 to segments - 1); the last segment's schema is the schema after the window."""
        return self._states[segment]

    def find_schema_at(self, commit_ts: int) -> SchemaState:
        """The schema with which a row committed at `commit_ts` is decoded."""
        return self._states[bisect_right(self._starts, commit_ts)]

    def find_schemas_at(self, commit_ts: NDArray[np.int64]) -> tuple[Sequence[SchemaState], NDArray[np.int64]]:
        """`find_schema_at` for many: the states of the window, and the index of each commit_ts's state."""
        # Loading a configuration imports this package, and most programs that do (pumps, DAG files) read no rows.
        import numpy as np

        return self._states, np.searchsorted(np.asarray(self._starts, np.int64), commit_ts, side="right")


def build_unknown_table_error(table_id: int, commit_ts: int) -> SchemaError:
    """The error for a row change of a table that no job named."""
    return SchemaError(
        "a row change names a table id that the schema history does not know",
        hint="reload the DDL history from the source, or start the task after this commit_ts, "
        "or list the commit_ts in ignore-txn-commit-ts to deliberately lose the transaction",
        where={"table_id": table_id, "commit_ts": commit_ts},
    )


def _require_job(ddl: WindowDdl) -> DdlJob:
    if ddl.job is None:
        raise SchemaError(
            "the job of a DDL of the window is missing",
            hint="land ends a window just before a DDL whose job is not in the history yet",
            where={"job_id": ddl.job_id, "commit_ts": ddl.commit_ts},
        )
    return ddl.job
