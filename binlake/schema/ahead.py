"""From where on rows may have seen a DDL job whose binlog comes behind them.

Rule (TiDB's online DDL; captures `ddl`, `zones`, `zones_unique`): a job runs in steps, its binlog is written with the
last one, and what an earlier step shows is in rows that were committed before the binlog. Such rows belong behind the
DDL. The schema version of a transaction does not tell which they are: it is that of its BEGIN, while a table is taken
as it is when the transaction first touches it. Time does: no row committed before a step has seen it. So the DDL is
placed at a moment that no such row can precede, and at which it is right to run it:

- DROP COLUMN, INDEX, PRIMARY KEY: when its first step ran. From the second on, keys are not checked (duplicates are
  committed) and rows lack the column. None of these jobs can be taken back once begun, and no row needs the key or the
  column: rows are found by the identity of their segment, which is what the table has without them.
- DROP PARTITION: when its first step ran; from then on TiDB puts rows of the range elsewhere. What is written into the
  partition nevertheless is told by `binlake.schema.emptied`.
- several clauses in one ALTER: when the last of them had begun, and had read the table if it copies values or builds an
  index. Behind that moment all become public or leave in one step, and each clause that drops takes three more. Rows
  from there on hold the new columns' values: the real ones, or what the ALTER gives to old rows.
- REORGANIZE PARTITION: when it had begun to copy; rows that only the new partitions take come later.
- anything else shows itself with its last step, at its binlog.
"""

from __future__ import annotations

from binlake.schema.actions import Action
from binlake.schema.job import DdlJob

_AT_FIRST_STEP = frozenset({Action.DROP_COLUMN, Action.DROP_INDEX, Action.DROP_PRIMARY_KEY, Action.DROP_PARTITION})
_WHEN_READY = frozenset({Action.MULTI_SCHEMA_CHANGE, Action.REORGANIZE_PARTITION})


def place_of(job: DdlJob, commit_ts: int) -> int:
    """The commit_ts from which on rows come behind `job`; `commit_ts`: its binlog's."""
    if not job.took_effect:
        return commit_ts
    if job.type in _AT_FIRST_STEP:
        return min(job.began_ts or commit_ts, commit_ts)
    if job.type in _WHEN_READY:
        return min(job.ready_ts or commit_ts, commit_ts)
    return commit_ts
