"""Definitions of the lake's tables: columns with types and comments, partitions, properties, engines (DESIGN 2).

`docs/reference/lake-tables.md` shows them (`make docs`), and so does Spark's DESCRIBE. `controltables` has those that
are Binlake's own. Mirrors get their columns from the source. The column names are constants in
`binlake.common.lakecolumns`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa

from binlake.common.lakecolumns import Binlog, Change, Ddl, History, Message, Mutation, OfSegment, Statement


@dataclass(frozen=True)
class Column:
    """A column: `name`, Spark SQL `type`, `comment` for people."""

    name: str
    type: str
    comment: str


HISTORY_DAYS = 30
"""Days for which replaced files of an append-only table are kept: its newest version has its whole history."""
WORKING_DAYS = 7
"""The same for tables with a window in progress, and for control tables."""
GROUP_ROWS = 1024
"""Rows of a row group of a control table, which has its own statistics: a read of one window decodes about one."""
DEFINITION_ROWS = 128
"""The same for tables whose rows have a whole definition each, of which a window needs a few."""
GROUP_BYTES = 1 << 20
"""Bytes of a row group, which has its own statistics, in a history table: a query for one key reads one per file."""


@dataclass(frozen=True)
class LakeTable:
    """A Delta table. Only delta-rs commits to it, and all writers hold the same lock (hazards R-41).

    `kept_days`: how long replaced files and old versions stay, for running readers and for restores. `indexed`: the
    columns whose minimum and maximum Delta stores for each file (empty: the first 32). `clustered_by`: the sort order
    inside the files of a closed day (`binlake maintain`); the commit_ts of these files do not overlap. `group_rows`: of
    a control table.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...] = ()
    kept_days: int = HISTORY_DAYS
    clustered_by: tuple[str, ...] = ()
    indexed: tuple[str, ...] = ()
    group_rows: int = GROUP_ROWS

    def build_properties(self) -> dict[str, str]:
        """Delta's table properties, set at creation (hazards R-33)."""
        properties = {
            "delta.deletedFileRetentionDuration": f"interval {self.kept_days} days",
            "delta.logRetentionDuration": f"interval {self.kept_days} days",
            "delta.checkpointInterval": "50",
        }
        if self.clustered_by:
            properties["parquet.block.size"] = str(GROUP_BYTES)
        if self.indexed:
            properties["delta.dataSkippingStatsColumns"] = ",".join(self.indexed)
        return properties

    def build_spark_schema(self) -> str:
        """The columns as a Spark schema text (`a BIGINT, …`)."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def build_arrow_schema(self) -> pa.Schema:
        """The columns as an Arrow schema, with the comments that delta-rs writes into the table."""
        plain = parse_schema(self.build_spark_schema())
        return pa.schema(
            [kind.with_metadata({"comment": column.comment}) for kind, column in zip(plain, self.columns, strict=True)]
        )

    def list_column_names(self) -> list[str]:
        """The column names in table order."""
        return [column.name for column in self.columns]


_ARROW_TYPES = {
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
}


def parse_schema(schema: str) -> pa.Schema:
    """The Arrow schema of a Spark schema text (`a BIGINT, b ARRAY<STRING>`) of this module's types. Raises KeyError."""
    columns = re.findall(r"`?(\w+)`? (\w+(?:<[^>]*>)?)", schema)
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in columns])


def format_schema(kinds: pa.Schema) -> str:
    """The Spark schema text of an Arrow schema with these types. Raises KeyError."""
    names = {kind: name for name, kind in _ARROW_TYPES.items()}
    return ", ".join(f"`{field.name}` {names[field.type]}" for field in kinds)


_MAP = "MAP<STRING, STRING>"
_COMMIT_TS = Column(History.COMMIT_TS, "BIGINT", "TSO of the commit: physical ms << 18 | logical")
_START_TS = Column(History.START_TS, "BIGINT", "TSO of the begin")
_DATE = Column(History.COMMIT_DATE, "DATE", "UTC day of commit_ts")
_VERSION = Column(History.SCHEMA_VERSION, "BIGINT", "schema version with which the transaction was built")
_WINDOW = Column(OfSegment.WINDOW, "STRING", "lo-hi of the window, both commit_ts in decimal, lo exclusive")
_SEGMENT = Column(OfSegment.SEGMENT, "INT", "0 before the window's first DDL; DDL k opens segment k")
_DB = Column(OfSegment.DB, "STRING", "database after routing")
_TABLE = Column(OfSegment.TABLE, "STRING", "table after routing")

BINLOG = LakeTable(
    "binlog",
    "Complete transactions and DDL as pulled from the pumps: the incremental backup",
    (
        _COMMIT_TS,
        _START_TS,
        Column(Binlog.CHUNK, "INT", "number of the part of one payload: 0, 1, ..."),
        _DATE,
        Column(Binlog.PUMP, "STRING", "node id of the pump from which it was pulled"),
        Column(Binlog.KIND, "STRING", "dml or ddl"),
        _VERSION,
        Column(Binlog.JOB_ID, "BIGINT", "DDL job id; 0 for DML"),
        Column(Binlog.SCHEMA_STATE, "INT", "schema state of a DDL binlog; 1 = delete-only of DROP COLUMN"),
        Column(Binlog.PAYLOAD, "BINARY", "serialised binlog.Binlog: the commit, completed with its prewrite"),
    ),
    partitioned_by=(Binlog.COMMIT_DATE,),
    clustered_by=(Binlog.COMMIT_TS, Binlog.START_TS, Binlog.CHUNK),
    # No query filters by payload.
    indexed=(Binlog.COMMIT_TS, Binlog.START_TS),
)

MUTATION = LakeTable(
    "mutation",
    "One row change: the row before and after, values as in the MySQL text protocol, binary types as upper-case hex",
    (
        _COMMIT_TS,
        _START_TS,
        Column(Mutation.SEQ, "INT", "order of the row change within its transaction, numbered before filters"),
        _DATE,
        _VERSION,
        Column(Mutation.SOURCE_DB, "STRING", "database at the source"),
        Column(Mutation.SOURCE_TABLE, "STRING", "table at the source"),
        _DB,
        _TABLE,
        Column(Mutation.TABLE_ID, "BIGINT", "table id at the source"),
        Column(Mutation.OP, "STRING", "insert, update or delete"),
        Column(
            Mutation.KEY,
            "STRING",
            "JSON array of the key columns' texts before the change; keyless tables: all columns",
        ),
        Column(Mutation.NEW_KEY, "STRING", "the key to which an update moved the row; NULL if the key did not change"),
        Column(Mutation.BEFORE, _MAP, "row before (update, delete)"),
        Column(Mutation.AFTER, _MAP, "row after (insert, update)"),
    ),
    partitioned_by=(Mutation.COMMIT_DATE,),
    clustered_by=(Mutation.DB, Mutation.TABLE, Mutation.KEY, Mutation.COMMIT_TS),
    # Minimum and maximum of every text would take a sixth of merge's time. For keys, those of row groups suffice.
    indexed=(Mutation.COMMIT_TS, Mutation.START_TS, Mutation.TABLE_ID),
)

DDL = LakeTable(
    "ddl",
    "DDL of a window in commit order; each applied one opens a segment",
    (
        _WINDOW,
        _SEGMENT,
        _COMMIT_TS,
        Column(
            Ddl.SINCE, "BIGINT", "rows from this commit_ts on follow the DDL; below its own if earlier rows may need it"
        ),
        _START_TS,
        _VERSION,
        Column(Ddl.JOB_ID, "BIGINT", "DDL job id"),
        Column(Ddl.ACTION, "INT", "TiDB action type"),
        _DB,
        _TABLE,
        Column(Ddl.QUERY, "STRING", "text of the DDL binlog"),
        Column(Ddl.SQL, "STRING", "text after routing, or an operator's statement instead of it or before it"),
        Column(Ddl.TABLES, "ARRAY<STRING>", "db.table touched, after routing"),
        Column(Ddl.DECISION, "STRING", "apply, skip, replaced, injected or refused"),
        Column(Ddl.REASON, "STRING", "the rule that skipped it, or why no target can run it"),
        Column(Ddl.BEFORE, "STRING", "JSON: definitions of the tables touched, before"),
        Column(Ddl.AFTER, "STRING", "JSON: definitions of the tables touched, after"),
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
        Column(Change.KEY, "STRING", "JSON array of the key of the target"),
        Column(Change.IDENTITY, "STRING", "primary, unique or row"),
        Column(Change.OP, "STRING", "delete, replace or insert"),
        Column(Change.BEFORE, _MAP, "image before the segment (delete)"),
        Column(Change.AFTER, _MAP, "final image (replace, insert)"),
        Column(Change.COPIES, "BIGINT", "number of equal rows: more than 1 only for keyless tables"),
        Column(Change.FIRST_COMMIT_TS, "BIGINT", "first change of the key in the segment"),
        Column(Change.LAST_COMMIT_TS, "BIGINT", "last change of the key in the segment"),
        Column(Change.MUTATIONS, "BIGINT", "number of row changes reduced to this one"),
    ),
    partitioned_by=(Change.WINDOW,),
    kept_days=WORKING_DAYS,
    # A window's rows are found by their folder (partition).
    indexed=(Change.SEGMENT,),
)

STATEMENT = LakeTable(
    "statement",
    "One batch of SQL, or one DDL: exactly what finalize executes",
    (
        _WINDOW,
        _SEGMENT,
        Column(Statement.PHASE, "INT", "0 DDL, 1 deletes, 2 writes, 3 changes of mode ordered, 4 keep, 5 restore"),
        Column(Statement.BATCH, "INT", "number within segment and phase"),
        _DB,
        _TABLE,
        Column(
            Statement.KIND,
            "STRING",
            "ddl, replaced, injected, delete, replace, upsert, insert, ordered, keep or restore",
        ),
        Column(Statement.SQL, "ARRAY<STRING>", "statements of the batch, in order"),
        Column(Statement.EXPECT, "ARRAY<BIGINT>", "affected rows that each statement must report; -1 = not checked"),
        Column(Statement.VERIFY_SQL, "STRING", "query that counts the keys of the batch after phase 2"),
        Column(Statement.VERIFY_ROWS, "BIGINT", "the count that verify_sql must return"),
        Column(Statement.ROWS, "BIGINT", "rows of the batch"),
        Column(Statement.DIGEST, "STRING", "SHA-256 of the statements"),
        Column(Statement.ROUND, "INT", "mode ordered: rounds of a segment run one after the other"),
        Column(Statement.QUEUE, "INT", "mode ordered: batches of a queue in a round run one after the other"),
        Column(
            Statement.WHOLE_TS, "BIGINT", "mode ordered: transactions up to it are complete before the round; 0 = none"
        ),
    ),
    partitioned_by=(Statement.WINDOW,),
    kept_days=WORKING_DAYS,
    # A window's rows are found by their folder (partition).
    indexed=(Statement.SEGMENT,),
)


MESSAGE = LakeTable(
    "feed",
    "One message of a feed as it is published, except for schema ids, which only the publisher knows",
    (
        Column(Message.WINDOW, "STRING", "lo-hi of the window, both commit_ts in decimal, lo exclusive"),
        Column(Message.COMMIT_TS, "BIGINT", "TSO of the commit: physical ms << 18 | logical"),
        Column(Message.START_TS, "BIGINT", "TSO of the begin"),
        Column(Message.SEQ, "INT", "order of the row change within its transaction"),
        Column(Message.PART, "INT", "0 for the deletion of the key from which a change moved the row, else 1"),
        _DB,
        _TABLE,
        Column(Message.OP, "STRING", "c insert, u update, d delete; ddl, watermark, transaction"),
        Column(Message.TOPIC, "STRING", "topic"),
        Column(
            Message.HASH,
            "BIGINT",
            "number that chooses the partition, modulo the topic's partitions; NULL: goes to all partitions",
        ),
        Column(
            Message.KEY_SCHEMA,
            "STRING",
            "fingerprint of the key's schema, whose text is in the window's manifest; NULL: no key schema",
        ),
        Column(Message.VALUE_SCHEMA, "STRING", "fingerprint of the value's schema"),
        Column(Message.KEY, "BINARY", "body of the key; NULL: no key"),
        Column(Message.VALUE, "BINARY", "body of the value; NULL for a tombstone"),
    ),
    partitioned_by=(Message.WINDOW,),
    kept_days=WORKING_DAYS,
    # A window's rows are found by their folder (partition).
    indexed=(Message.COMMIT_TS,),
)


def build_message_table(feed: str) -> LakeTable:
    """The table of one feed: each feed has its own, so that no feed waits for another's commit."""
    return replace(MESSAGE, name=f"{MESSAGE.name}/{feed}")


STAGE_TABLES = (BINLOG, MUTATION, DDL, CHANGE, STATEMENT)
