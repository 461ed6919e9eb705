"""Definitions of the lake's tables: columns with types and comments, partitions, properties, engines (DESIGN 2).

`docs/reference/lake-tables.md` shows them (`make docs`), Spark's DESCRIBE too. Mirrors take their columns from the
source. Stages still name the columns that they read and write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """A column: `name`, Spark SQL `type`, `comment` for people."""

    name: str
    type: str
    comment: str


HISTORY_DAYS = 30
"""Days that replaced files of a table which only grows are kept: its newest version is its whole history already."""
WORKING_DAYS = 7
"""The same for tables that hold a window while it is worked on, and for control tables."""
GROUP_BYTES = 1 << 20
"""Bytes of a group of rows with statistics of its own in a history table: a question for one key reads one a file."""


@dataclass(frozen=True)
class LakeTable:
    """A Delta table and the engines that commit to it, one at a time: its writers hold one lock (hazards R-41).

    `kept_days`: how long replaced files and old versions stay, for readers at work and to restore after an accident.
    `indexed`: the columns whose least and greatest value Delta keeps for each file (empty: the first 32).
    `clustered_by`: the order inside the files of a closed day, whose commit_ts do not overlap (`binlake maintain`).
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...] = ()
    engine: Literal["Spark", "delta-rs", "Spark and delta-rs"] = "Spark"
    kept_days: int = HISTORY_DAYS
    clustered_by: tuple[str, ...] = ()
    indexed: tuple[str, ...] = ()

    def properties(self) -> dict[str, str]:
        """Delta's table properties, set at creation (hazards R-33)."""
        found = {
            "delta.deletedFileRetentionDuration": f"interval {self.kept_days} days",
            "delta.logRetentionDuration": f"interval {self.kept_days} days",
            "delta.checkpointInterval": "50",
        }
        if self.clustered_by:
            found["parquet.block.size"] = str(GROUP_BYTES)
        if self.indexed:
            found["delta.dataSkippingStatsColumns"] = ",".join(self.indexed)
        # Times of versions that outlive a copy of the files; delta-rs does not write them.
        return found | ({"delta.enableInCommitTimestamps": "true"} if self.engine == "Spark" else {})

    def schema(self) -> str:
        """The columns as a Spark schema text (`a BIGINT, …`)."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """The columns as Arrow has them, with their comments where delta-rs puts them into the table."""
        plain = arrow_schema(self.schema())
        return pa.schema(
            [kind.with_metadata({"comment": column.comment}) for kind, column in zip(plain, self.columns, strict=True)]
        )

    def column_names(self) -> list[str]:
        """Names in table order."""
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


def arrow_schema(schema: str) -> pa.Schema:
    """A Spark schema text of this module's types (`a BIGINT, b ARRAY<STRING>`) as Arrow's. Raises KeyError."""
    columns = re.findall(r"`?(\w+)`? (\w+(?:<[^>]*>)?)", schema)
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in columns])


def schema_text(kinds: pa.Schema) -> str:
    """The Spark schema text of such columns. Raises KeyError."""
    names = {kind: name for name, kind in _ARROW_TYPES.items()}
    return ", ".join(f"`{field.name}` {names[field.type]}" for field in kinds)


_BOTH: Literal["Spark and delta-rs"] = "Spark and delta-rs"
"""A small window's rows, and those of large ones that a task writes, are committed by delta-rs; the rest is Spark's."""
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
    clustered_by=("commit_ts", "start_ts", "chunk"),
    engine=_BOTH,
    # Nobody asks by the least payload.
    indexed=("commit_ts", "start_ts"),
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
        Column("key", "STRING", "JSON array of the key columns text before the change; keyless tables: all columns"),
        Column("new_key", "STRING", "the key that an update moved the row to; NULL where the key stayed"),
        Column("before", _MAP, "row before (update, delete)"),
        Column("after", _MAP, "row after (insert, update)"),
    ),
    partitioned_by=("commit_date",),
    clustered_by=("db", "table", "key", "commit_ts"),
    engine=_BOTH,
    # Least and greatest of every text would cost merge a sixth of its time; those of row groups tell keys apart.
    indexed=("commit_ts", "start_ts", "table_id"),
)

DDL = LakeTable(
    "ddl",
    "DDL of a window in commit order; each opens a segment",
    (
        _WINDOW,
        _SEGMENT,
        _COMMIT_TS,
        Column("since", "BIGINT", "rows from here on come after it: below its own where rows may have run ahead of it"),
        _START_TS,
        _VERSION,
        Column("job_id", "BIGINT", "DDL job id"),
        Column("action", "INT", "TiDB action type"),
        _DB,
        _TABLE,
        Column("query", "STRING", "text of the DDL binlog"),
        Column("sql", "STRING", "text after routing, or what an operator put in its place or before it"),
        Column("tables", "ARRAY<STRING>", "db.table touched, after routing"),
        Column("decision", "STRING", "apply, skip, replaced, injected or refused"),
        Column("reason", "STRING", "rule that decided to skip; why no target can run it"),
        Column("before", "STRING", "JSON: definitions of the tables touched, before"),
        Column("after", "STRING", "JSON: definitions of the tables touched, after"),
    ),
    engine=_BOTH,
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
    kept_days=WORKING_DAYS,
    engine=_BOTH,
    # A window is found by its folder.
    indexed=("segment",),
)

STATEMENT = LakeTable(
    "statement",
    "One batch of SQL, or one DDL: what finalize executes and nothing else",
    (
        _WINDOW,
        _SEGMENT,
        Column("phase", "INT", "0 DDL, 1 deletes, 2 writes, 3 changes of mode ordered, 4 keep, 5 restore"),
        Column("batch", "INT", "number within segment and phase"),
        _DB,
        _TABLE,
        Column("kind", "STRING", "ddl, replaced, injected, delete, replace, upsert, insert, ordered, keep or restore"),
        Column("sql", "ARRAY<STRING>", "statements of the batch, in order"),
        Column("expect", "ARRAY<BIGINT>", "affected rows each must report; -1 = not checked"),
        Column("verify_sql", "STRING", "query that counts the keys of the batch after phase 2"),
        Column("verify_rows", "BIGINT", "count it must return"),
        Column("rows", "BIGINT", "rows of the batch"),
        Column("digest", "STRING", "SHA-256 of the statements"),
        Column("round", "INT", "mode ordered: rounds of a segment run one after the other"),
        Column("queue", "INT", "mode ordered: batches of a queue in a round run one after the other"),
        Column("whole_ts", "BIGINT", "mode ordered: transactions up to it are whole before the round; 0 = none"),
    ),
    partitioned_by=("window",),
    kept_days=WORKING_DAYS,
    engine=_BOTH,
    # A window is found by its folder.
    indexed=("segment",),
)


def _control(name: str, comment: str, *columns: Column, partitioned_by: tuple[str, ...] = ()) -> LakeTable:
    return LakeTable(name, comment, columns, partitioned_by, "delta-rs", WORKING_DAYS)


_SOURCE_DB = Column("db", "STRING", "database at the source")
_SOURCE_TABLE = Column("table", "STRING", "table at the source")

WINDOW = _control(
    "window",
    "One event of a window: a stage came to its end; the sealed manifests",
    Column("lo", "BIGINT", "commit_ts after which the window starts"),
    Column("hi", "BIGINT", "last commit_ts of the window"),
    Column(
        "stage",
        "STRING",
        "plan, land, merge, compact, convert, finalize, mirror; start, incident, forget, release, skip, backfill,"
        " rollback, verify, repair, aside, verify-ddl, failure",
    ),
    Column("sink", "STRING", "sql, mirror; empty for what all sinks share"),
    Column(
        "state",
        "STRING",
        "done, already, blocked, waiting, skipped, failed; marks: started, ready, told, accepted-loss",
    ),
    Column("rows", "BIGINT", "transactions (land), row changes (merge), rows of the stage"),
    Column("seconds", "DOUBLE", "time the stage took"),
    Column("run_id", "STRING", "run of the DAG or the command that did it"),
    Column("at_ms", "BIGINT", "Unix ms of the record"),
    Column("blocked_by", "STRING", "pumps that held the plan back, by comma"),
    Column("detail", "STRING", "JSON: what else the stage reports to people"),
    Column("manifest", "STRING", "JSON sealed by land, merge, compact and convert for the stages after them"),
    partitioned_by=("stage",),
)

PUMP_MEMBER = _control(
    "pump_member",
    "One pump ever seen, as the last landed window knew it",
    Column("node_id", "STRING", "node id of the pump"),
    Column("store_uuid", "STRING", "identity of its data directory; empty for an original pump"),
    Column("state", "STRING", "state in the registry; forgotten = given up by a person"),
    Column("watermark", "BIGINT", "its max_commit_ts"),
    Column("landed_ts", "BIGINT", "commit_ts up to which its binlogs are in the lake"),
    Column("at_ms", "BIGINT", "Unix ms of the record"),
)

SCHEMA_CHANGE = _control(
    "schema_change",
    "One DDL job of the source",
    Column("schema_version", "BIGINT", "schema version that the job made"),
    Column("commit_ts", "BIGINT", "TSO of its binlog, else of its end"),
    Column("job_id", "BIGINT", "DDL job id"),
    Column("action", "INT", "TiDB action type"),
    Column("kind", "STRING", "the action in words"),
    _SOURCE_DB,
    _SOURCE_TABLE,
    Column("table_id", "BIGINT", "table id at the source"),
    Column("query", "STRING", "text of the DDL"),
    Column("job", "STRING", "JSON of the job, with the definition after it"),
)

SCHEMA_SNAPSHOT = _control(
    "schema_snapshot",
    "One object of a whole schema state, so that no reader folds all jobs",
    Column("ts", "BIGINT", "commit_ts of the state"),
    Column("kind", "STRING", "state, schema or table"),
    Column("object_id", "BIGINT", "id at the source"),
    Column("definition", "STRING", "JSON of the object"),
)

_VERSION_COLUMNS = (
    _SOURCE_DB,
    _SOURCE_TABLE,
    Column("delta_version", "BIGINT", "Delta version of the mirror"),
    Column("lo", "BIGINT", "commit_ts after which its changes start"),
    Column("hi", "BIGINT", "commit_ts whose state it is, until the next row of the table"),
    Column("dropped", "BOOLEAN", "the table does not exist from hi on"),
    Column("inexact", "STRING", "why it may differ from the source; empty = exact"),
)

MIRROR_VERSION = _control(
    "mirror_version", "Which Delta version of a mirror is the state at which commit_ts", *_VERSION_COLUMNS
)

MIRROR_HEAD = _control(
    "mirror_head",
    "The newest row of mirror_version of each table as it was at `upto`: a short cut, derived",
    *_VERSION_COLUMNS,
    Column("upto", "BIGINT", "commit_ts; newer rows are in mirror_version only"),
)

VERIFY = _control(
    "verify",
    "A chunk of a table that an unfinished `binlake verify` found equal: its next run does not read it again",
    Column("commit_ts", "BIGINT", "checkpoint of the target at which it was compared"),
    Column("against", "STRING", "lake or source"),
    Column("db", "STRING", "database at the target"),
    Column("table", "STRING", "table at the target"),
    Column("chunk", "BIGINT", "number of the chunk; -1 = the row that has the cuts"),
    Column("rows", "BIGINT", "rows of the chunk"),
    Column("cuts", "STRING", "JSON: how the table is cut; empty for a chunk"),
    Column("at_ms", "BIGINT", "Unix ms of the record"),
)

SPARK_TABLES = (BINLOG, MUTATION, DDL, CHANGE, STATEMENT)
CONTROL_TABLES = (WINDOW, PUMP_MEMBER, SCHEMA_CHANGE, SCHEMA_SNAPSHOT, MIRROR_VERSION, MIRROR_HEAD, VERIFY)
