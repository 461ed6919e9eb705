"""From where on rows may have seen a DDL job whose binlog comes behind them.

Rule (TiDB's online DDL; captures `ddl`, `zones`, `zones_unique`): a job runs in steps, its binlog is written with the
last one, and what an earlier step shows is in rows that were committed before the binlog. Such rows belong behind the
DDL. The schema version of a transaction does not show which they are: it is that of its BEGIN, while a table is taken
as it is when the transaction first touches it. Time does: no row committed before a step has seen it. So the DDL is
placed at a moment that no such row can precede, and at which it is right to run it:

- DROP COLUMN, INDEX, PRIMARY KEY: when its first step ran. From the second on, keys are not checked (duplicates are
  committed) and rows lack the column. None of these jobs can be taken back once begun, and no row needs the key or the
  column: rows are found by the identity of their segment, which is what the table has without them.
- DROP PARTITION: when its first step ran; from then on TiDB puts rows of the range elsewhere. What is written into the
  partition nevertheless is decided by `binlake.rows.schema.emptied`.
- several clauses in one ALTER: when the last of them had begun, and had read the table if it copies values or builds an
  index. Behind that moment all become public or leave in one step, and each clause that drops takes three more. Rows
  from there on hold the new columns' values: the real ones, or what the ALTER gives to old rows.
- REORGANIZE PARTITION: when it had begun to copy; rows that only the new partitions take come later. Of a table without
  a key, as PARTITION BY and REMOVE PARTITIONING of one: when its first step ran, even if it was taken back, for from
  then on changes are logged twice (`binlake.rows.schema.reorganized`).
- anything else shows itself with its last step, at its binlog.
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
"""What may be in one ALTER with others, besides those that drop: its step does not say whether it is."""


def effective_from(job: DdlJob, commit_ts: int) -> int:
    """The commit_ts from which on rows come behind `job`; `commit_ts`: its binlog's."""
    if job.schema_version and logs_twice(job.type, _table_of(job)):
        return min(job.began_ts or commit_ts, commit_ts)
    if not job.took_effect:
        return commit_ts
    if job.type in _AT_FIRST_STEP:
        return min(job.began_ts or commit_ts, commit_ts)
    if job.type in _WHEN_READY:
        return min(job.ready_ts or commit_ts, commit_ts)
    return commit_ts


def running_from(job: Mapping[str, Any], table: TableDef | None = None) -> int | None:
    """As `effective_from`, of a job (its JSON) of `table` that is not over: None where no row has seen it yet."""
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


def visible_to_rows(info: Mapping[str, Any] | None) -> object:
    """What rows see of a table (TableInfo): its public columns, keys and partitions. Two are compared, no more.

    What a running DDL is about to add is in the definition as well, and not public: no row shows it.
    """
    if info is None:
        return None
    columns = [_column(column) for column in info.get("cols") or () if column["state"] == PUBLIC]
    keys = [(key["id"], key["idx_name"]["O"]) for key in info.get("index_info") or () if key["state"] == PUBLIC]
    partitions = [part["id"] for part in (info.get("partition") or {}).get("definitions") or ()]
    return info.get("state", PUBLIC), sorted(columns), sorted(keys), sorted(partitions)


def _column(column: Mapping[str, Any]) -> tuple[object, ...]:
    kind = column["type"]
    shape = (kind["Tp"], kind["Flen"], kind["Decimal"], kind["Charset"] or "", kind["Collate"] or "")
    return column["id"], column["name"]["O"], *shape, tuple(kind.get("Elems") or ())


def may_run_ahead(kind: int) -> bool:
    """True when rows ahead of the binlog may have seen a step of `kind` (of a job, or of a clause in one)."""
    return kind in _AT_FIRST_STEP or kind in _WHEN_READY or kind in _CLAUSES or kind in REARRANGING


def logs_twice(kind: int, table: TableDef | None) -> bool:
    """True when a job of `kind` has changes of `table` logged twice from its first step on, and no key shows which."""
    return kind in REARRANGING and table is not None and table.identity().kind == "row"


def _table_of(job: DdlJob) -> TableDef | None:
    if job.type not in REARRANGING or job.table_info is None:
        return None
    return TableDef.from_json(job.table_info, DbInfo(job.schema_id, job.schema_name, "", "", {}))
