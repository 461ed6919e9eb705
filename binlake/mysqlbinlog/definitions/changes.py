"""One change of the catalog as a DDL job of TiDB: its text, its ids, and the definitions after it.

The field `feeder` of a job holds what TiDB's jobs have no field for: the source, and the state of an online-DDL tool's
tables (such a job did not take effect). Jobs are the whole state: folding them in order gives the catalog, its next id
and its next version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from binlake.rows.schema import Action, DdlJob
from binlake.rows.schema.forms import Json
from binlake.rows.schema.job import PUBLIC

_REMOVING = frozenset({Action.DROP_SCHEMA, Action.DROP_TABLE, Action.DROP_COLUMN, Action.DROP_INDEX})


@dataclass(frozen=True)
class DefinitionChange:
    """`body`: the job without its times; `query`: the text of its binlog."""

    source: str
    query: str
    body: Json

    @property
    def job_id(self) -> int:
        """The id of the job."""
        return int(self.body["id"])

    @property
    def version(self) -> int:
        """The SchemaVersion after the change."""
        return int(self.body["binlog"]["SchemaVersion"])

    @property
    def schema_state(self) -> int:
        """`ddl_schema_state` of its binlog: 0 if something is removed, else public."""
        return 0 if Action(self.body["type"]) in _REMOVING else PUBLIC

    def build_job(self, start_ts: int, commit_ts: int) -> Json:
        """The job as `/ddl/history` shows it, and as the journal stores it. `commit_ts`: its own or a later one.

        Its only step is at its commit, unlike TiDB's (`binlake.rows.schema.window`): a statement's jobs are all
        submitted before the first of them commits, and one that drops must not be placed before those it follows.
        """
        binlog = {**self.body["binlog"], "FinishedTS": commit_ts}
        return {**self.body, "start_ts": start_ts, "real_start_ts": commit_ts, "binlog": binlog}


def read_source(job: Mapping[str, Any]) -> str:
    """The source that made a job's change."""
    return str(job["feeder"]["source"])


def find_greatest_id(jobs: Iterable[DdlJob]) -> int:
    """The greatest id of a job, database or table in `jobs`; 0 if there is none."""
    return max(
        (max(job.id, job.schema_id, job.table_id, (job.table_info or {}).get("id", 0)) for job in jobs), default=0
    )
