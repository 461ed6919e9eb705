"""Definitions of the lake's tables: columns with types and comments, partitions, properties, engines (DESIGN 2).

`docs/reference/lake-tables.md` shows them (`make docs`), and so does Spark's DESCRIBE. Mirrors get their columns from
the source. The column names are constants in `binlake.base.lakecolumns`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa

from binlake.base.lakecolumns import (
    BaseChunk,
    Binlog,
    Change,
    Ddl,
    History,
    Message,
    MirrorHead,
    MirrorVersion,
    Mutation,
    OfSegment,
    PumpMember,
    SchemaChange,
    SchemaSnapshot,
    Statement,
    Validation,
    Verify,
    Window,
)


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


def _build_control_table(
    name: str, comment: str, *columns: Column, partitioned_by: tuple[str, ...] = (), group_rows: int = GROUP_ROWS
) -> LakeTable:
    return LakeTable(name, comment, columns, partitioned_by, WORKING_DAYS, group_rows=group_rows)


_SOURCE_DB = Column(SchemaChange.DB, "STRING", "database at the source")
_SOURCE_TABLE = Column(SchemaChange.TABLE, "STRING", "table at the source")

WINDOW = _build_control_table(
    "window",
    "One event of a window, such as the end of a stage; also has the sealed manifests",
    Column(Window.LO, "BIGINT", "commit_ts after which the window starts"),
    Column(Window.HI, "BIGINT", "last commit_ts of the window"),
    Column(
        Window.STAGE,
        "STRING",
        "plan, land, merge, compact, convert, finalize, validate, mirror, encode, publish; start, base, disk, incident,"
        " forget, release, skip, backfill, rollback, emit, feed, verify, repair, aside, verify-ddl, validation,"
        " lock, failure",
    ),
    Column(Window.SINK, "STRING", "sql, mirror, feed.NAME; empty for stages that all sinks share"),
    Column(
        Window.STATE,
        "STRING",
        "done, already, blocked, waiting, skipped, postponed, failed; marks: started, ready, told, accepted-loss",
    ),
    Column(Window.ROWS, "BIGINT", "transactions (land), row changes (merge), rows of the stage"),
    Column(Window.SECONDS, "DOUBLE", "time the stage took"),
    Column(Window.RUN_ID, "STRING", "run of the DAG, or of the command, that recorded it"),
    Column(Window.AT_MS, "BIGINT", "Unix ms of the record"),
    Column(Window.BLOCKED_BY, "STRING", "pumps that blocked the plan, comma-separated"),
    Column(Window.DETAIL, "STRING", "JSON: further information of the stage for people"),
    Column(Window.MANIFEST, "STRING", "JSON sealed by land, merge, compact and convert for later stages"),
    partitioned_by=(Window.STAGE,),
)

PUMP_MEMBER = _build_control_table(
    "pump_member",
    "One pump that was ever seen, as the last landed window recorded it",
    Column(PumpMember.NODE_ID, "STRING", "node id of the pump"),
    Column(PumpMember.STORE_UUID, "STRING", "identity of its data directory; empty for an original pump"),
    Column(PumpMember.STATE, "STRING", "state in the registry; forgotten = given up by an operator"),
    Column(PumpMember.WATERMARK, "BIGINT", "its max_commit_ts"),
    Column(PumpMember.LANDED_TS, "BIGINT", "commit_ts up to which its binlogs are in the lake"),
    Column(PumpMember.AT_MS, "BIGINT", "Unix ms of the record"),
)

SCHEMA_CHANGE = _build_control_table(
    "schema_change",
    "One DDL job of the source",
    Column(SchemaChange.SCHEMA_VERSION, "BIGINT", "schema version after the job"),
    Column(SchemaChange.COMMIT_TS, "BIGINT", "TSO of its binlog, else of the end of the job"),
    Column(SchemaChange.JOB_ID, "BIGINT", "DDL job id"),
    Column(SchemaChange.ACTION, "INT", "TiDB action type"),
    Column(SchemaChange.KIND, "STRING", "the action in words"),
    _SOURCE_DB,
    _SOURCE_TABLE,
    Column(SchemaChange.TABLE_ID, "BIGINT", "table id at the source"),
    Column(SchemaChange.QUERY, "STRING", "text of the DDL"),
    Column(SchemaChange.JOB, "STRING", "JSON of the job, with the definition after it"),
    group_rows=DEFINITION_ROWS,
)

SCHEMA_SNAPSHOT = _build_control_table(
    "schema_snapshot",
    "One object of a complete schema state, so that no reader must fold all jobs",
    Column(SchemaSnapshot.TS, "BIGINT", "commit_ts of the state"),
    Column(
        SchemaSnapshot.KIND,
        "STRING",
        "state, schema, table; names: of all tables; gone, alias, dropped: of former ones; begun",
    ),
    Column(SchemaSnapshot.OBJECT_ID, "BIGINT", "id at the source"),
    Column(SchemaSnapshot.DEFINITION, "STRING", "JSON of the object"),
    group_rows=DEFINITION_ROWS,
)

BASE_CHUNK = _build_control_table(
    "base_chunk",
    "A range of a table that the full load of a TiDB source has read; its rows are in files of `binlog`",
    Column(BaseChunk.TABLE_ID, "BIGINT", "table id at the source"),
    _SOURCE_DB,
    _SOURCE_TABLE,
    Column(BaseChunk.LOW, "STRING", "literal of the key after which the range begins; empty for the first range"),
    Column(BaseChunk.HIGH, "STRING", "literal of the range's last key; empty for the last range"),
    Column(BaseChunk.FIRST_TS, "BIGINT", "lowest commit_ts that its transactions may have"),
    Column(BaseChunk.LAST_TS, "BIGINT", "highest commit_ts that its transactions may have"),
    Column(BaseChunk.ROWS, "BIGINT", "rows of the range"),
    Column(BaseChunk.TRANSACTIONS, "BIGINT", "number of transactions with these rows"),
    Column(BaseChunk.BYTES, "BIGINT", "bytes of the transactions' payloads"),
    Column(BaseChunk.FOLD, "STRING", "JSON: summary of the hashes of its rows in `binlog`, for the window's digest"),
    Column(BaseChunk.PARTS, "STRING", "JSON: the files"),
    Column(BaseChunk.AT_MS, "BIGINT", "Unix ms of the record"),
)

_VERSION_COLUMNS = (
    _SOURCE_DB,
    _SOURCE_TABLE,
    Column(MirrorVersion.DELTA_VERSION, "BIGINT", "Delta version of the mirror"),
    Column(MirrorVersion.LO, "BIGINT", "commit_ts after which the version's changes start"),
    Column(MirrorVersion.HI, "BIGINT", "commit_ts whose state the version has, until the next row of the table"),
    Column(MirrorVersion.DROPPED, "BOOLEAN", "the table does not exist from hi on"),
    Column(MirrorVersion.INEXACT, "STRING", "why it may differ from the source; empty = exact"),
)

MIRROR_VERSION = _build_control_table(
    "mirror_version", "Which Delta version of a mirror has the state at which commit_ts", *_VERSION_COLUMNS
)

MIRROR_HEAD = _build_control_table(
    "mirror_head",
    "The newest row of mirror_version of each table as of `upto`: derived, to speed up reads",
    *_VERSION_COLUMNS,
    Column(MirrorHead.UPTO, "BIGINT", "commit_ts; newer rows are in mirror_version only"),
)

VERIFY = _build_control_table(
    "verify",
    "A chunk of a table that an unfinished `binlake verify` found equal; the next run does not read it again",
    Column(Verify.COMMIT_TS, "BIGINT", "checkpoint of the target at which it was compared"),
    Column(Verify.AGAINST, "STRING", "lake or source"),
    Column(Verify.DB, "STRING", "database at the target"),
    Column(Verify.TABLE, "STRING", "table at the target"),
    Column(Verify.CHUNK, "BIGINT", "number of the chunk; -1 = the row with the chunk bounds"),
    Column(Verify.ROWS, "BIGINT", "rows of the chunk"),
    Column(Verify.CUTS, "STRING", "JSON: how the table is split into chunks; empty for a chunk"),
    Column(Verify.AT_MS, "BIGINT", "Unix ms of the record"),
)

VALIDATION = _build_control_table(
    "validation",
    "A row that continuous validation found different at the target, or that waits for proof",
    Column(Validation.NUMBER, "BIGINT", "number of the error for `binlake validation`; 0 while it is pending"),
    Column(Validation.STATUS, "STRING", "pending, new, ignored or resolved"),
    Column(Validation.AGAINST, "STRING", "lake or source"),
    Column(Validation.DB, "STRING", "database at the target"),
    Column(Validation.TABLE, "STRING", "table at the target"),
    Column(Validation.KEY, "STRING", "JSON array of the key of the target"),
    Column(Validation.KIND, "STRING", "missing, extra or different"),
    Column(Validation.DIFFERING, "ARRAY<STRING>", "columns that differ"),
    Column(Validation.EXPECTED, "STRING", "JSON: the row as it must be; empty: it must not exist, or it is pending"),
    Column(Validation.FOUND, "STRING", "JSON: the row that the target had; empty: it had none, or it is pending"),
    Column(Validation.WINDOW, "STRING", "lo-hi of the window after which it was found"),
    Column(Validation.SINCE, "BIGINT", "commit_ts after which the lake has the row's last change"),
    Column(Validation.TIMES, "BIGINT", "number of runs that saw it"),
    Column(Validation.FIRST_MS, "BIGINT", "Unix ms of the first such run"),
    Column(Validation.LAST_MS, "BIGINT", "Unix ms of the last such run"),
    Column(Validation.PROOF, "STRING", "JSON: what is known about a pending row; empty for an error"),
)

STAGE_TABLES = (BINLOG, MUTATION, DDL, CHANGE, STATEMENT)
CONTROL_TABLES = (
    WINDOW, PUMP_MEMBER, SCHEMA_CHANGE, SCHEMA_SNAPSHOT, MIRROR_VERSION, MIRROR_HEAD, VERIFY, VALIDATION, BASE_CHUNK,
)  # fmt: skip
