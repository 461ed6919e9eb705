"""The settings of the SQL sink and of its relay files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from binlake.base.sections import HostText, Section, SqlSecurity, TableName
from binlake.base.sql import Dialect


def _convert_safe_mode(value: object) -> object:
    return {True: "always", False: "auto"}[value] if isinstance(value, bool) else value


SafeMode = Annotated[Literal["always", "auto", "never"], BeforeValidator(_convert_safe_mode)]


class TargetTable(TableName):
    """Tables of the target whose definition differs from the source's, by name at the target or ~regex. The first that
    matches applies. `binlake preflight` names every difference."""

    preserve: bool = Field(
        False, description="for a target table with additional columns, or another primary key: keep the values in them"
    )
    accept: tuple[str, ...] = Field((), description="accepted differences, each in the exact words of preflight")


_BATCH, _ORDERED_BATCH = 1000, 100
"""Rows per batch: if the order within a phase does not matter, and if it does (DM's default)."""


class TargetSection(Section):
    """The SQL sink."""

    db_type: Dialect = Field("mysql", description="dialect of the target")
    host: HostText = Field("127.0.0.1", description="host name or address")
    port: int = Field(3306, ge=1, le=65535, description="TCP port")
    user: str = Field("root", description="user; see the runbook for the privileges")
    password: str = Field("", repr=False, description="password: `env:NAME` or `airflow:CONN_ID`")
    security: SqlSecurity = Field(SqlSecurity())
    mode: Literal["atomic", "parallel", "ordered", "auto"] = Field(
        "atomic",
        description="`atomic`: one transaction per segment; `parallel`: batches over worker-count connections;"
        " `ordered`: every row change, in commit order; `auto`: atomic up to max-segment-rows and -bytes, else"
        " parallel",
    )
    safe_mode: SafeMode = Field(
        "always",
        description="`always` (or true): writes use REPLACE; `auto` (or false): only if rows of the window may be at"
        " the target already, else INSERT … ON DUPLICATE KEY UPDATE if that has the same effect; `never`: as `auto`,"
        " but every checkpoint counts as clean",
    )
    safe_mode_duration_s: float = Field(
        60.0,
        ge=0,
        description="seconds of commit time with REPLACE after an unclean checkpoint of another writer (as DM)",
    )
    worker_count: int = Field(
        16, ge=1, le=1024, description="connections in the modes parallel and ordered (the drainer's default)"
    )
    batch: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        alias="txn-batch",
        description="rows per statement, and per transaction in the modes parallel and ordered. `auto`: 100 in"
        " `ordered`, as DM (the drainer had 20); 1000 in the other modes, which costs both sides a third less",
    )
    multiple_rows: bool = Field(
        False,
        description="`ordered`: write consecutive changes of one kind in one statement (as in DM); other modes always"
        " do this",
    )
    conflict_strategy: Literal["causality", "flush"] = Field(
        "causality",
        description="`ordered`: which changes wait for all earlier ones: `causality`, those that link two groups of"
        " keys (DM); `flush`, those of a key with an unfinished change (drainer)",
    )
    max_segment_rows: int = Field(
        5_000_000,
        ge=1,
        description="most rows of one transaction; above it `atomic` fails, `auto` uses parallel",
    )
    max_segment_bytes: int = Field(
        1 << 30,
        ge=1,
        description="most bytes of SQL text in one transaction; above it as for max-segment-rows",
    )
    impossible_changes: Literal["fail", "last"] = Field(
        "fail",
        description="for changes of one key that contradict each other within a segment, such as an INSERT of a row"
        " that exists: `fail` names key and commit_ts; `last` uses the last one, which is always done if filters"
        " dropped changes of the window. Without effect in `ordered`, where the target itself refuses such changes",
    )
    on_table_error: Literal["stop", "set-aside"] = Field(
        "stop",
        description="for a table that cannot be applied (missing, other definition, refused DDL or row, a written key"
        " absent): `stop`: all tables wait until it is fixed, or set aside with `binlake table aside`; `set-aside`:"
        " the other tables continue, and `consistent` is false until `binlake table back`",
    )
    most_set_aside: int = Field(
        10,
        ge=1,
        description="if more tables would be set aside, `set-aside` stops instead: the cause is then hardly the tables",
    )
    verify_after_ddl_rows: int = Field(
        200_000,
        ge=0,
        description="after a DDL that converts, fills or removes a table's rows, compare the table with the lake"
        " (else the source) if it has at most this many rows by the target's estimate; 0 = never",
    )
    sync_mode: Literal[1, 2] = Field(
        1,
        description="1: all columns of the source; 2 (drainer's partial): only those that the target's table has",
    )
    tables: tuple[TargetTable, ...] = Field((), description="tables whose definition differs from the source's")
    checkpoint_schema: str = Field("tidb_binlog", description="database of the checkpoint and of Binlake's own tables")
    connect_timeout_s: float = Field(10.0, gt=0, description="timeout of a connection attempt, in seconds")
    lease_s: int = Field(30, ge=1, description="seconds after which a lease that finalize does not renew expires")
    graceful_stop_timeout_s: float = Field(
        10.0, ge=0, description="seconds that running statements have after SIGTERM before they are killed"
    )

    @property
    def batch_rows(self) -> int:
        """Rows per batch."""
        if self.batch != "auto":
            return self.batch
        return _ORDERED_BATCH if self.mode == "ordered" else _BATCH


class RelaySection(Section):
    """Relay files: a window's statements outside the lake, for `binlake recover` if the lake is lost too."""

    log_dir: str = Field(
        "",
        repr=False,
        description="folder of the files: any mounted path, or `s3://bucket/prefix?...` with the parameters of a sink"
        " URI; empty = no relay files (the lake has the statements too)",
    )
    max_file_size: int = Field(
        10_485_760,
        gt=0,
        description="bytes after which a file is closed, at the end of a batch (drainer's default)",
    )
