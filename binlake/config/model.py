"""The settings of a replication's TOML. Settings that TiDB Binlog, DM or TiCDC has keep its names and defaults.

Every field's `description` goes into the generated configuration reference.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from binlake.base.dialects import Dialect
from binlake.base.sections.rules import (
    BlockAllowList,
    DdlInjection,
    DdlReplacement,
    EventRule,
    ExpressionRule,
    FilterSection,
    LoopbackSection,
    RouteRule,
    ShardMode,
)
from binlake.base.sections.security import SecuritySection, SqlSecurity
from binlake.base.sections.values import HostText, NameList, Section, TableName, TsText
from binlake.config.airflow import AirflowSection
from binlake.config.feed import FeedSection
from binlake.config.mask import MaskSection
from binlake.config.validation import ValidationSection
from binlake.config.window import WindowSection
from binlake.errors import ConfigError
from binlake.pipeline import Stage, select_stages
from binlake.rows.schema.session import read_zone


def _convert_safe_mode(value: object) -> object:
    return {True: "always", False: "auto"}[value] if isinstance(value, bool) else value


SafeMode = Annotated[Literal["always", "auto", "never"], BeforeValidator(_convert_safe_mode)]


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


class LakeStorage(Section):
    """How an object store with the lake is reached. Credentials come from an Airflow connection, the environment
    (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AZURE_STORAGE_ACCOUNT_KEY, …) or the machine's role, never from this
    file."""

    endpoint: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="URL of a store other than AWS or Azure; empty = AWS_ENDPOINT_URL, else AWS, or for `abfss://`"
        " AZURE_STORAGE_ENDPOINT, else Azure",
    )
    region: str = Field("", description="region of S3; empty = AWS_REGION, else us-east-1")
    credentials: str = Field(
        "",
        pattern=r"^(airflow:[A-Za-z0-9_.\-]+)?$",
        description="`airflow:CONN_ID`: login and password of this connection are the key id and the secret key; for Azure"
        " the password is the account's key",
    )


class LakeSection(Section):
    """Where the Delta tables live."""

    path: str = Field(
        description="root folder, `s3://bucket/prefix` or `abfss://container@account.dfs.core.windows.net/prefix`; tables"
        " are under <path>/<replication>/"
    )
    storage: LakeStorage = Field(LakeStorage())
    retention_days: int = Field(400, ge=1, description="days of time travel on mirrors (set when a mirror is created)")
    keep: tuple[Literal["change", "statement"], ...] = Field(
        (),
        description="tables whose rows are always written: `change`, `statement`. Without it, a window that one process"
        " derives and applies in memory leaves them out: their digests are sealed, and whoever needs the rows derives"
        " them again",
    )


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


class MirrorSection(Section):
    """Typed Delta replicas."""

    enabled: bool = Field(True, description="write <lake>/<replication>/mirror/<db>/<table>")


class Replication(Section):
    """One replication: a source cluster, a lake, and its sinks."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,62}$", description="name; also the DAG id and the folder in the lake"
    )
    initial_commit_ts: TsText = Field(
        "-1",
        description="commit_ts after which a new replication starts; -1 = now, 0 = the beginning. Used once: another"
        " value is an error if the lake has data",
    )
    show_row_values: bool = Field(
        False,
        description="show values of rows in errors and logs; else lengths, and marks of keys (docs/operate/audit.md)",
    )
    plain_passwords: NameList = Field(
        (),
        description="keys whose password may be in this file itself, such as `target.password`; others name it:"
        " `env:NAME`, `airflow:CONN_ID`",
    )
    source: SourceSection = Field(SourceSection())
    lake: LakeSection
    window: WindowSection = Field(WindowSection())
    filter: FilterSection = Field(FilterSection())
    block_allow_list: BlockAllowList | None = Field(None, description="DM's table lists instead of those in `[filter]`")
    filters: tuple[EventRule, ...] = Field((), description="event filter: kinds of changes to drop")
    routes: tuple[RouteRule, ...] = Field((), description="names at the target")
    shard_mode: ShardMode = Field(
        "",
        description="DDL of tables that share a target. Empty: the target has the widest of their definitions; if"
        " none contains all others, the pipeline stops until `optimistic` is set. `optimistic`: the target has their"
        " joined definition, which no table need have."
        " `pessimistic`: a DDL, and the rows after it, wait until all tables have the DDL",
    )
    shard_lock_alert_s: int = Field(
        3600,
        ge=0,
        description="pessimistic: alert if rows wait for more seconds of commit time than this; 0 = none",
    )
    expression_filter: tuple[ExpressionRule, ...] = Field((), description="SQL expressions for rows to drop")
    ddl_replacement: tuple[DdlReplacement, ...] = Field((), description="statements that replace single DDL")
    ddl_injection: tuple[DdlInjection, ...] = Field((), description="statements to run on the target between changes")
    loopback: LoopbackSection = Field(LoopbackSection())
    target: TargetSection | None = Field(None, description="absent = no SQL sink")
    relay: RelaySection = Field(RelaySection())
    mirror: MirrorSection = Field(MirrorSection())
    feed: tuple[FeedSection, ...] = Field((), description="feeds of row changes as messages; each is a separate sink")
    validation: ValidationSection = Field(ValidationSection())
    mask: MaskSection = Field(MaskSection())
    airflow: AirflowSection = Field(AirflowSection())

    @model_validator(mode="after")
    def _require_one_table_filter(self) -> Replication:
        lists = {"ignore_schemas", "ignore_table", "replicate_do_db", "replicate_do_table"}
        both = sorted(lists & self.filter.model_fields_set)
        if self.block_allow_list is not None and both:
            key = both[0].replace("_", "-")
            raise ValueError(f"choose tables with `block-allow-list` or with `filter.{key}`, not with both")
        return self

    @model_validator(mode="after")
    def _require_safe_mode_with_filters(self) -> Replication:
        drops = [
            key for key, rules in (("filters", self.filters), ("expression-filter", self.expression_filter)) if rules
        ]
        if drops and self.target is not None and self.target.mode == "ordered" and self.target.safe_mode != "always":
            raise ValueError(
                f"target.mode = ordered with `{drops[0]}` needs safe-mode = always: a plain INSERT or UPDATE can meet"
                " rows that the source no longer has, or does not have yet"
            )
        return self

    @model_validator(mode="after")
    def _require_net_changes_for_holds(self) -> Replication:
        if self.shard_mode != "pessimistic":
            return self
        if self.target is not None and self.target.mode == "ordered":
            raise ValueError(
                "shard-mode = pessimistic does not work with target.mode = ordered: held rows would follow later ones"
            )
        if self.feed:
            raise ValueError(
                "shard-mode = pessimistic does not work with [[feed]]: a feed publishes in commit order and does not"
                " wait for tables; put the feeds into another replication, or use optimistic"
            )
        return self

    @model_validator(mode="after")
    def _require_distinct_feed_names(self) -> Replication:
        names = [feed.name for feed in self.feed]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two feeds have the name {twice[0]!r}; a feed's name is its changefeed id")
        return self

    @model_validator(mode="after")
    def _require_target_for_validation(self) -> Replication:
        if self.validation.mode != "off" and self.target is None:
            raise ValueError("`validation` compares the rows of a SQL target: add a section [target], or remove it")
        return self

    def list_stages(self) -> tuple[Stage, ...]:
        """The stages of its windows: those of the lake, then those of each sink."""
        sinks = {"sql": self.target is not None, "mirror": self.mirror.enabled}
        return select_stages(
            [name for name, has in sinks.items() if has],
            feeds=[feed.name for feed in self.feed],
            validated=self.validation.mode != "off",
        )

    def require_feed(self, name: str) -> FeedSection:
        """The feed `name`. Raises ConfigError."""
        for feed in self.feed:
            if feed.name == name:
                return feed
        known = ", ".join(feed.name for feed in self.feed) or "none"
        raise ConfigError(
            "this replication has no such feed",
            where={"replication": self.name, "feed": name},
            hint=f"known: {known}; add a section [[feed]], or `binlake changefeed create`",
        )

    def require_sql_target(self, *, hint: str = "add a section [target]") -> TargetSection:
        """The SQL target. Raises ConfigError, with `hint`, if there is none."""
        if self.target is None:
            raise ConfigError("this replication has no SQL target", where={"replication": self.name}, hint=hint)
        return self.target

    def list_stop_points(self) -> tuple[int, ...]:
        """`window.stop-at` as sorted integers."""
        return tuple(sorted(int(ts) for ts in self.window.stop_at))

    def compute_data_hash(self) -> str:
        """Hash of the settings that decide a window's rows (filters, routes); the manifest pins it (hazards R-40)."""
        rules = {"filter", "block_allow_list", "filters", "routes", "expression_filter", "ddl_replacement",
                 "ddl_injection", "loopback"}  # fmt: skip
        # Omitted if it is not set, so that the hash of an older lake stays the same.
        rules |= {"shard_mode"} if self.shard_mode else set()
        values = self.model_dump(mode="json", include=rules)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


__all__ = [
    "AirflowSection",
    "FilterSection",
    "LakeSection",
    "MirrorSection",
    "RelaySection",
    "Replication",
    "SourceSection",
    "TableName",
    "TargetSection",
    "TargetTable",
    "WindowSection",
]
