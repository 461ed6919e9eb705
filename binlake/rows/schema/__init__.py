"""Schema history: definitions from TiDB's DDL jobs, folded in SchemaVersion order, and the schemas of a window.

`SchemaState` answers "which definition at this place"; `WindowSchemas` cuts a window into segments at its DDLs.
"""

from binlake.schema.actions import Action, JobState
from binlake.schema.info import ColumnInfo, DbInfo, Identity, IndexColumn, IndexInfo, TableDef
from binlake.schema.job import DdlJob
from binlake.schema.state import SchemaState
from binlake.schema.window import PlacedDdl, WindowDdl, WindowSchemas, ddl_kind, place_ddls

__all__ = [
    "Action",
    "ColumnInfo",
    "DbInfo",
    "DdlJob",
    "Identity",
    "IndexColumn",
    "IndexInfo",
    "JobState",
    "PlacedDdl",
    "SchemaState",
    "TableDef",
    "WindowDdl",
    "WindowSchemas",
    "ddl_kind",
    "place_ddls",
]
