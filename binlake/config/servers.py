"""The settings of a replication's servers: its source, the target of its SQL sink, and sources to validate with.

The source has a PD, a status port, perhaps a SQL server; `[source.snapshot]` says what to do where a log does not say
enough. Relay files keep what the SQL sink applies. Continuous validation compares rows of applied windows, window by
window (DM's `validators`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from binlake.common.sections import HostText, NameList, Section, SecuritySection, SqlSecurity, TableName
from binlake.common.sql import Dialect
from binlake.rows.schema.job import read_zone


def _check_zone(text: str) -> str:
    if text and read_zone(text) is None:
        raise ValueError(f"{text!r} is not a time zone; use `+08:00`, `UTC`, or a name that this machine knows")
    return text


class SourceSql(Section):
    """A TiDB server whose `mysql.tidb_ddl_history` is read instead of the status port's DDL history (TiDB >= 6.2)."""

    host: HostText = Field(description="host name or address")
    port: int = Field(4000, ge=1, le=65535, description="TCP port")
    user: str = Field(
        "root",
        description="user with SELECT on mysql.tidb_ddl_history and mysql.tidb_ddl_job;"
        " for a full load, on all tables that are replicated",
    )
    password: str = Field("", repr=False, description="password: `env:NAME` or `airflow:CONN_ID`")
    security: SqlSecurity | None = Field(None, description="absent = the files of [source.security]")


class SourceSnapshot(Section):
    """How `binlake bootstrap` reads the tables of a TiDB source through `[source.sql]`."""

    threads: int = Field(4, ge=1, le=64, description="connections that read rows in parallel (dumpling: --threads)")
    chunk_rows: int = Field(
        20_000, ge=1, le=1_000_000, description="rows per chunk; an interrupted chunk is read again"
    )


class SourceSection(Section):
    """Where binlogs and schemas come from."""

    pd_urls: NameList = Field(("http://127.0.0.1:2379",), description="addresses of PD (TSO and registry), comma list")
    status_url: str = Field("http://127.0.0.1:10080", description="TiDB's status port: DDL history, transaction status")
    cluster_id: str = Field("", pattern=r"^[0-9]*$", description="refuse any other cluster; empty = accept PD's")
    new_collation: bool = Field(
        True,
        description="false for a cluster created with new_collations_enabled_on_first_bootstrap = false. It compares"
        " all text bytewise, whatever collations its definitions name, so the target's collations are bytewise too",
    )
    time_zone: Annotated[str, AfterValidator(_check_zone)] = Field(
        "",
        description="time zone of the sessions that send DDL, such as `+08:00` or `Europe/Berlin`, for DDL jobs that"
        " do not contain it; TiDB converts TIMESTAMP values with it. Empty = DDL that depends on it is refused",
    )
    invalid_text: Literal["refuse", "latin1"] = Field(
        "refuse",
        description="handling of text whose bytes are not UTF-8, which TiDB accepts in latin1 columns: `refuse` ="
        " merge stops; `latin1` = merge reads it as MySQL's latin1 (windows-1252) and counts it, with one alert per"
        " window and table. In columns of a unique key it is always refused",
    )
    second_writes: Literal["refuse", "once"] = Field(
        "refuse",
        description="TiDB logs changes twice while REORGANIZE PARTITION runs. In tables without a key the duplicates"
        " cannot be identified: `refuse` = merge stops; `once` = each pair counts as one change, with one alert per"
        " window and table. Compare the table afterwards (`binlake verify --fix`): the source may have such rows"
        " twice",
    )
    partition_rows: Literal["refuse", "removed"] = Field(
        "refuse",
        description="rows that were committed while their partition was dropped, truncated or exchanged, if nothing"
        " shows whether they were written before or after it: `refuse` = merge stops; `removed` = they went with the"
        " partition, with one alert per window and table. Compare the table with the source afterwards (`binlake verify"
        " --against source --fix`)",
    )
    session_variables: Literal["unknown", "default"] = Field(
        "unknown",
        description="variables of MySQL's or MariaDB's sessions that no log has and on which an ALTER's values in old"
        " rows may depend, such as div_precision_increment: `unknown` = finalize stops at such an ALTER; `default` = no"
        " session and no setting of the source changes them from a new server's, which the target then uses",
    )
    timeout_s: float = Field(10.0, gt=0, description="timeout of a call to PD, a pump or the status port, in seconds")
    security: SecuritySection = Field(SecuritySection())
    sql: SourceSql | None = Field(None, description="absent = the DDL history is read from the status port")
    snapshot: SourceSnapshot = Field(SourceSnapshot())

    @property
    def expected_cluster(self) -> int:
        """`cluster-id` as a number; 0 = not configured."""
        return int(self.cluster_id or 0)

    @property
    def sql_security(self) -> SqlSecurity:
        """TLS to the server of `[source.sql]`."""
        if self.sql is not None and self.sql.security is not None:
            return self.sql.security
        ca, cert, key = self.security.list_files()
        return SqlSecurity(ssl_ca=ca, ssl_cert=cert, ssl_key=key)


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


class ValidatedSource(Section):
    """The MySQL or MariaDB server that a feeder reads, to compare its current rows. With GTIDs a replica of it is
    enough; without GTIDs it must be that server."""

    name: str = Field(description="the source's name in feeder.toml")
    host: HostText = Field(description="host name or address")
    port: int = Field(3306, ge=1, le=65535, description="TCP port")
    user: str = Field("root", description="user with SELECT on the tables; without GTIDs, also REPLICATION CLIENT")
    password: str = Field("", repr=False, description="password: `env:NAME` or `airflow:CONN_ID`")
    security: SqlSecurity = Field(SqlSecurity())
    rename_schema: str = Field("", description="`rename-schema` of this source in feeder.toml")

    @model_validator(mode="after")
    def _require_schema_placeholder(self) -> ValidatedSource:
        if self.rename_schema and "{schema}" not in self.rename_schema:
            raise ValueError("`rename-schema` has no `{schema}` in it")
        return self

    def find_schema(self, database: str) -> str | None:
        """The name at the source of `database`, a name that the feeder gives; None if it is not from this source."""
        template = (self.rename_schema or "{schema}").replace("{source}", self.name)
        prefix, _, suffix = template.partition("{schema}")
        if len(database) <= len(prefix) + len(suffix) or not database.startswith(prefix):
            return None
        return database[len(prefix) : len(database) - len(suffix)] if database.endswith(suffix) else None


class ValidationSection(Section):
    """Compares rows of each applied window with the lake, and with the source if it can be queried."""

    mode: Literal["off", "sample", "full"] = Field(
        "off", description="`sample`: compare some of the rows that a window changed; `full`: all of them"
    )
    sample_rows: int = Field(1000, ge=1, description="rows that `sample` compares per run, shared among the tables")
    max_behind_s: int = Field(
        3600,
        ge=1,
        description="skip rows that changed more than this many seconds of commit time before the checkpoint, so that"
        " validation need not catch up after a standstill",
    )
    max_pending_rows: int = Field(
        10_000,
        ge=1,
        description="limit for pending rows, which differ from the source's current ones and wait for proof; more are"
        " dropped",
    )
    max_errors: int = Field(1000, ge=1, description="errors stored in the ledger; further ones are only counted")
    source: tuple[ValidatedSource, ...] = Field((), description="servers behind a feeder that may be queried")
