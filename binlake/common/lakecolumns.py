"""Names of the columns of the lake's tables, each once (`Mutation.COMMIT_TS`); `binlake.lake.tables` has their types.

Code refers to a column by its constant, so that the type check finds a wrong name before a window fails because of it.
This module is below all rooms that read rows of the lake: decoding, net changes, statements, stages.
"""

from __future__ import annotations


class History:
    """Columns of both tables that only grow: `binlog` and `mutation`."""

    COMMIT_TS = "commit_ts"
    START_TS = "start_ts"
    COMMIT_DATE = "commit_date"
    SCHEMA_VERSION = "schema_version"


class Binlog(History):
    """Columns of `binlog`."""

    CHUNK = "chunk"
    PUMP = "pump"
    KIND = "kind"
    JOB_ID = "job_id"
    SCHEMA_STATE = "schema_state"
    PAYLOAD = "payload"


class Mutation(History):
    """Columns of `mutation`."""

    SEQ = "seq"
    SOURCE_DB = "source_db"
    SOURCE_TABLE = "source_table"
    DB = "db"
    TABLE = "table"
    TABLE_ID = "table_id"
    OP = "op"
    KEY = "key"
    NEW_KEY = "new_key"
    BEFORE = "before"
    AFTER = "after"


class OfSegment:
    """Columns of all tables that are derived for a sink's window: `ddl`, `change`, `statement`."""

    WINDOW = "window"
    SEGMENT = "segment"
    DB = "db"
    TABLE = "table"


class Ddl(OfSegment):
    """Columns of `ddl`."""

    COMMIT_TS = "commit_ts"
    SINCE = "since"
    START_TS = "start_ts"
    SCHEMA_VERSION = "schema_version"
    JOB_ID = "job_id"
    ACTION = "action"
    QUERY = "query"
    SQL = "sql"
    TABLES = "tables"
    DECISION = "decision"
    REASON = "reason"
    BEFORE = "before"
    AFTER = "after"


class Change(OfSegment):
    """Columns of `change`."""

    KEY = "key"
    IDENTITY = "identity"
    OP = "op"
    BEFORE = "before"
    AFTER = "after"
    COPIES = "copies"
    FIRST_COMMIT_TS = "first_commit_ts"
    LAST_COMMIT_TS = "last_commit_ts"
    MUTATIONS = "mutations"


class Message:
    """Columns of a feed's messages."""

    WINDOW = "window"
    COMMIT_TS = "commit_ts"
    START_TS = "start_ts"
    SEQ = "seq"
    PART = "part"
    DB = "db"
    TABLE = "table"
    OP = "op"
    TOPIC = "topic"
    HASH = "hash"
    KEY_SCHEMA = "key_schema"
    VALUE_SCHEMA = "value_schema"
    KEY = "key"
    VALUE = "value"


class Statement(OfSegment):
    """Columns of `statement`."""

    PHASE = "phase"
    BATCH = "batch"
    KIND = "kind"
    SQL = "sql"
    EXPECT = "expect"
    VERIFY_SQL = "verify_sql"
    VERIFY_ROWS = "verify_rows"
    ROWS = "rows"
    DIGEST = "digest"
    ROUND = "round"
    QUEUE = "queue"
    WHOLE_TS = "whole_ts"


class Window:
    """Columns of `window`; a row of it is a `binlake.window.events.EventRow`."""

    LO = "lo"
    HI = "hi"
    STAGE = "stage"
    SINK = "sink"
    STATE = "state"
    ROWS = "rows"
    SECONDS = "seconds"
    RUN_ID = "run_id"
    AT_MS = "at_ms"
    BLOCKED_BY = "blocked_by"
    DETAIL = "detail"
    MANIFEST = "manifest"


class PumpMember:
    """Columns of `pump_member`."""

    NODE_ID = "node_id"
    STORE_UUID = "store_uuid"
    STATE = "state"
    WATERMARK = "watermark"
    LANDED_TS = "landed_ts"
    AT_MS = "at_ms"


class SchemaChange:
    """Columns of `schema_change`."""

    SCHEMA_VERSION = "schema_version"
    COMMIT_TS = "commit_ts"
    JOB_ID = "job_id"
    ACTION = "action"
    KIND = "kind"
    DB = "db"
    TABLE = "table"
    TABLE_ID = "table_id"
    QUERY = "query"
    JOB = "job"


class SchemaSnapshot:
    """Columns of `schema_snapshot`."""

    TS = "ts"
    KIND = "kind"
    OBJECT_ID = "object_id"
    DEFINITION = "definition"


class BaseChunk:
    """Columns of `base_chunk`."""

    TABLE_ID = "table_id"
    DB = "db"
    TABLE = "table"
    LOW = "low"
    HIGH = "high"
    FIRST_TS = "first_ts"
    LAST_TS = "last_ts"
    ROWS = "rows"
    TRANSACTIONS = "transactions"
    BYTES = "bytes"
    FOLD = "fold"
    PARTS = "parts"
    AT_MS = "at_ms"


class MirrorVersion:
    """Columns of `mirror_version`."""

    DB = "db"
    TABLE = "table"
    DELTA_VERSION = "delta_version"
    LO = "lo"
    HI = "hi"
    DROPPED = "dropped"
    INEXACT = "inexact"


class MirrorHead(MirrorVersion):
    """Columns of `mirror_head`."""

    UPTO = "upto"


class Mirror:
    """Binlake's own columns of a mirror, after those of the source."""

    COMMIT_TS = "_commit_ts"
    ROWKEY = "_rowkey"
    COPY = "_copy"
    TEXT = "_text"


class Verify:
    """Columns of `verify`."""

    COMMIT_TS = "commit_ts"
    AGAINST = "against"
    DB = "db"
    TABLE = "table"
    CHUNK = "chunk"
    ROWS = "rows"
    CUTS = "cuts"
    AT_MS = "at_ms"


class Validation:
    """Columns of `validation`."""

    NUMBER = "number"
    STATUS = "status"
    AGAINST = "against"
    DB = "db"
    TABLE = "table"
    KEY = "key"
    KIND = "kind"
    DIFFERING = "differing"
    EXPECTED = "expected"
    FOUND = "found"
    WINDOW = "window"
    SINCE = "since"
    TIMES = "times"
    FIRST_MS = "first_ms"
    LAST_MS = "last_ms"
    PROOF = "proof"
