"""Definitions of the lake's control tables, which only Binlake itself reads: small, and written without Spark.

As `binlake.lake.tables` for the tables of rows.
"""

from __future__ import annotations

from binlake.common.lakecolumns import (
    BaseChunk,
    MirrorHead,
    MirrorVersion,
    PumpMember,
    SchemaChange,
    SchemaSnapshot,
    Validation,
    Verify,
    Window,
)
from binlake.lake.tables import DEFINITION_ROWS, GROUP_ROWS, WORKING_DAYS, Column, LakeTable


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

CONTROL_TABLES = (
    WINDOW, PUMP_MEMBER, SCHEMA_CHANGE, SCHEMA_SNAPSHOT, MIRROR_VERSION, MIRROR_HEAD, VERIFY, VALIDATION, BASE_CHUNK,
)  # fmt: skip
