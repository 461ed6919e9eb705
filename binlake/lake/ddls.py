"""Reads the lake's table `ddl` without Spark: the landed DDL of a range of commit_ts, over any number of windows."""

from __future__ import annotations

import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from binlake.lake.dataset import dataset
from binlake.lake.paths import LakePaths
from binlake.schema.delta import Definitions
from binlake.window.definitions import LandedDdl

_PLAIN = (
    "commit_ts", "since", "start_ts", "schema_version", "job_id", "action", "db", "table", "query", "sql", "decision",
    "reason",
)  # fmt: skip


def landed_ddls(paths: LakePaths, lo: int, hi: int) -> list[LandedDdl]:
    """The DDL with lo < commit_ts <= hi in commit order, skipped ones included. Raises SchemaError."""
    try:
        table = DeltaTable(paths.table("ddl"))
    except TableNotFoundError:
        return []
    where = (ds.field("commit_ts") > lo) & (ds.field("commit_ts") <= hi)
    columns = [*_PLAIN, "segment", "before", "after"]
    rows = dataset(table).to_table(columns=columns, filter=where).to_pylist()
    # Rows of one commit_ts keep the order that merge gave them; a window's segments only grow.
    rows.sort(key=lambda row: (row["commit_ts"], row["segment"], row["schema_version"]))
    return [_ddl(row) for row in rows]


def _ddl(row: dict[str, object]) -> LandedDdl:
    before, after = Definitions.from_json(str(row["before"])), Definitions.from_json(str(row["after"]))
    return LandedDdl(**{name: row[name] for name in _PLAIN}, before=before, after=after)  # type: ignore[arg-type]
