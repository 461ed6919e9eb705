"""Definitions of the lake's tables: the only place that names their columns, comments and properties (DESIGN 2)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """A column: `name`, Spark SQL `type`, `comment` for people."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True)
class LakeTable:
    """A Delta table written by Spark; `audit` tables keep their history for the configured retention."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...] = ()
    audit: bool = True
    properties: dict[str, str] = field(default_factory=dict)

    def schema_ddl(self) -> str:
        """The columns as Spark SQL (`a BIGINT COMMENT '…', …`)."""
        return ", ".join(f"`{c.name}` {c.type} COMMENT '{c.comment}'" for c in self.columns)

    def schema(self) -> str:
        """The columns as a Spark schema text (`a BIGINT, …`)."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        return arrow_schema(self.schema())

    def column_names(self) -> list[str]:
        """Names in table order."""
        return [column.name for column in self.columns]


_ARROW_TYPES = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
}


def arrow_schema(schema: str) -> pa.Schema:
    """A Spark schema text of this module's types (`a BIGINT, b ARRAY<STRING>`) as Arrow's. Raises KeyError."""
    columns = re.findall(r"`?(\w+)`? (\w+(?:<[^>]*>)?)", schema)
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in columns])


_MAP = "MAP<STRING, STRING>"
_COMMIT_TS = Column("commit_ts", "BIGINT", "TSO of the commit: physical ms << 18 | logical")
_START_TS = Column("start_ts", "BIGINT", "TSO of the begin")
_DATE = Column("commit_date", "DATE", "UTC day of commit_ts")
_VERSION = Column("schema_version", "BIGINT", "schema version the transaction was built with")
_WINDOW = Column("window", "STRING", "lo-hi of the window, both commit_ts in decimal, lo exclusive")
_SEGMENT = Column("segment", "INT", "0 before the first DDL of the window; DDL k opens segment k")
_DB = Column("db", "STRING", "database after routing")
_TABLE = Column("table", "STRING", "table after routing")

BINLOG = LakeTable(
    "binlog",
    "Complete transactions and DDL as pulled from the pumps: the incremental backup",
    (
        _COMMIT_TS,
        _START_TS,
        Column("chunk", "INT", "0, 1, ... parts of one payload"),
        _DATE,
        Column("pump", "STRING", "node id it was pulled from"),
        Column("kind", "STRING", "dml or ddl"),
        _VERSION,
        Column("job_id", "BIGINT", "DDL job id; 0 for DML"),
        Column("schema_state", "INT", "schema state of a DDL binlog; 1 = delete-only of DROP COLUMN"),
        Column("payload", "BINARY", "serialised binlog.Binlog, commit completed from its prewrite"),
    ),
    partitioned_by=("commit_date",),
)

MUTATION = LakeTable(
    "mutation",
    "One row change: before and after as the MySQL text protocol shows them, binary types as upper-case hex",
    (
        _COMMIT_TS,
        _START_TS,
        Column("seq", "INT", "order of the row change within its transaction, numbered before filters"),
        _DATE,
        _VERSION,
        Column("source_db", "STRING", "database at the source"),
        Column("source_table", "STRING", "table at the source"),
        _DB,
        _TABLE,
        Column("table_id", "BIGINT", "table id at the source"),
        Column("op", "STRING", "insert, update or delete"),
        Column("key", "STRING", "JSON array of the key columns text; of all columns for keyless tables"),
        Column("before", _MAP, "row before (update, delete)"),
        Column("after", _MAP, "row after (insert, update)"),
    ),
    partitioned_by=("commit_date",),
)

DDL = LakeTable(
    "ddl",
    "DDL of a window in commit order; each opens a segment",
    (
        _WINDOW,
        _SEGMENT,
        _COMMIT_TS,
        Column("since", "BIGINT", "least commit_ts of rows behind it: below its own where rows ran ahead of it"),
        _START_TS,
        _VERSION,
        Column("job_id", "BIGINT", "DDL job id"),
        Column("action", "INT", "TiDB action type"),
        _DB,
        _TABLE,
        Column("query", "STRING", "text of the DDL binlog"),
        Column("sql", "STRING", "text after routing"),
        Column("tables", "ARRAY<STRING>", "db.table touched, after routing"),
        Column("decision", "STRING", "apply or skip"),
        Column("reason", "STRING", "rule that decided to skip"),
        Column("before", "STRING", "JSON: definitions of the tables touched, before"),
        Column("after", "STRING", "JSON: definitions of the tables touched, after"),
    ),
)

CHANGE = LakeTable(
    "change",
    "Net change of one key in one segment of a window",
    (
        _WINDOW,
        _SEGMENT,
        _DB,
        _TABLE,
        Column("key", "STRING", "JSON array of the key of the target"),
        Column("identity", "STRING", "primary, unique or row"),
        Column("op", "STRING", "delete, replace or insert"),
        Column("before", _MAP, "image before the segment (delete)"),
        Column("after", _MAP, "final image (replace, insert)"),
        Column("copies", "BIGINT", "rows meant: more than 1 only for keyless tables"),
        Column("first_commit_ts", "BIGINT", "first change of the key in the segment"),
        Column("last_commit_ts", "BIGINT", "last change of the key in the segment"),
        Column("mutations", "BIGINT", "row changes reduced into this one"),
    ),
    partitioned_by=("window",),
    audit=False,
)

STATEMENT = LakeTable(
    "statement",
    "One batch of SQL, or one DDL: what finalize executes and nothing else",
    (
        _WINDOW,
        _SEGMENT,
        Column("phase", "INT", "0 DDL, 1 deletes, 2 writes"),
        Column("batch", "INT", "number within segment and phase"),
        _DB,
        _TABLE,
        Column("kind", "STRING", "ddl, delete, replace or insert"),
        Column("sql", "ARRAY<STRING>", "statements of the batch, in order"),
        Column("expect", "ARRAY<BIGINT>", "affected rows each must report; -1 = not checked"),
        Column("verify_sql", "STRING", "query that counts the keys of the batch after phase 2"),
        Column("verify_rows", "BIGINT", "count it must return"),
        Column("rows", "BIGINT", "rows of the batch"),
        Column("digest", "STRING", "SHA-256 of the statements"),
    ),
    partitioned_by=("window",),
    audit=False,
)

SPARK_TABLES = (BINLOG, MUTATION, DDL, CHANGE, STATEMENT)
