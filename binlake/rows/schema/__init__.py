"""Schema history: definitions from TiDB's DDL jobs, folded in SchemaVersion order, and the schemas of a window.

`SchemaState` gives the definition of a table at one position; `WindowSchemas` cuts a window into segments at its DDLs.
"""

from binlake.rows.schema.info import ColumnInfo, DbInfo, IndexColumn, IndexInfo, RowIdentity, TableDef
from binlake.rows.schema.job import Action, DdlJob, JobState
from binlake.rows.schema.state import SchemaState
from binlake.rows.schema.window import WindowDdl, WindowSchemas, classify_ddl, sort_ddls

__all__ = [
    "Action",
    "ColumnInfo",
    "DbInfo",
    "DdlJob",
    "IndexColumn",
    "IndexInfo",
    "JobState",
    "RowIdentity",
    "SchemaState",
    "TableDef",
    "WindowDdl",
    "WindowSchemas",
    "classify_ddl",
    "sort_ddls",
]
