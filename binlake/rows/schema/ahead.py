"""The position from which on rows may have seen a DDL job, although its binlog comes later.

Rule (TiDB's online DDL; captures `ddl`, `zones`, `zones_unique`): a job runs in steps and writes its binlog with the
last step. Rows that were committed before the binlog may already show an earlier step; such rows belong after the DDL.
The schema version of a transaction does not tell which rows these are: it is the version at BEGIN, but the transaction
uses each table as it is when it first touches it. The time does tell: a row committed before a step has not seen it.
Therefore Binlake places the DDL at a timestamp that no such row precedes and at which the DDL can correctly run:

- DROP COLUMN, INDEX, PRIMARY KEY: when its first step ran. From the second step on, keys are not checked (duplicates
  are committed) and rows lack the column. None of these jobs can be cancelled once begun. No row needs the key or the
  column, because rows are found by the identity of their segment, which the table has without them.
- DROP PARTITION: when its first step ran; from then on TiDB puts rows of the range elsewhere. For rows that are still
  written into the partition, `binlake.rows.schema.emptied` decides.
- Several clauses in one ALTER: when the last of them had begun, and had read the table if it copies values or builds
  an index. After that, all clauses become public or are removed in one step, and each clause that drops takes three
  more steps. Rows from there on have values in the new columns: real ones, or the values that the ALTER gives to old
  rows.
- REORGANIZE PARTITION: when it had begun to copy; rows that only the new partitions accept come later. For a table
  without a key, also for PARTITION BY and REMOVE PARTITIONING: when its first step ran, even if the job was rolled
  back, because from then on changes are logged twice (`binlake.rows.schema.reorganized`).
- Every other job: at its binlog, because rows see only its last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from binlake.rows.schema.actions import DELETE_REORG, PUBLIC, Action
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.job import DdlJob
from binlake.rows.schema.reorganized import REARRANGING

_AT_FIRST_STEP = frozenset({Action.DROP_COLUMN, Action.DROP_INDEX, Action.DROP_PRIMARY_KEY, Action.DROP_PARTITION})
_WHEN_READY = frozenset({Action.MULTI_SCHEMA_CHANGE, Action.REORGANIZE_PARTITION})
_CLAUSES = frozenset(
    {Action.ADD_COLUMN, Action.ADD_INDEX, Action.ADD_PRIMARY_KEY, Action.MODIFY_COLUMN, Action.RENAME_INDEX,
     Action.SET_DEFAULT, Action.INDEX_VISIBILITY, Action.TABLE_COMMENT, Action.TABLE_CHARSET}
)  # fmt: skip
"""Clauses that may share one ALTER with others, besides those that drop: their steps do not show whether they do."""


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
