"""The settings of a replication's TOML; names and defaults are the originals' where an original exists.

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
    Filter,
    Loopback,
    RouteRule,
    ShardMode,
)
from binlake.base.sections.values import NameList, Section, TableName, TsText
from binlake.config.airflow import Airflow
from binlake.config.feed import Feed
from binlake.config.validation import Validation
from binlake.errors import ConfigError
from binlake.pipeline import Stage, stages_for
from binlake.rows.schema.session import read_zone


def _safe_mode(value: object) -> object:
    return {True: "always", False: "auto"}[value] if isinstance(value, bool) else value


SafeMode = Annotated[Literal["always", "auto", "never"], BeforeValidator(_safe_mode)]


class Security(Section):
    """TLS towards PD and TiDB's status port where their URL is https://, and towards pumps and `source.sql` when any
    file is given."""

    ssl_ca: str = Field(
        "", description="PEM file of the authority that signed their certificates; empty = the system's"
    )
    ssl_cert: str = Field("", description="PEM file of the client certificate, if the servers require one")
    ssl_key: str = Field("", description="PEM file of its key")

    def files(self) -> tuple[str, str, str]:
        """Authority, certificate and key, empty = none."""
        return self.ssl_ca, self.ssl_cert, self.ssl_key


def _check_zone(text: str) -> str:
    if text and read_zone(text) is None:
        raise ValueError(f"{text!r} is not a time zone: `+08:00`, `UTC`, or a name that this machine knows")
    return text


class SourceSql(Section):
    """A TiDB server whose `mysql.tidb_ddl_history` is read instead of the status port's DDL history (TiDB >= 6.2)."""

    host: str = Field(description="host name or address")
    port: int = Field(4000, ge=1, le=65535, description="TCP port")
    user: str = Field(
        "root",
        description="user with SELECT on mysql.tidb_ddl_history and mysql.tidb_ddl_job;"
        " for a full load, on all tables that are replicated",
    )
    password: str = Field("", repr=False, description="password; `env:NAME` reads it from the environment")


class SourceSnapshot(Section):
    """How `binlake bootstrap` reads the tables of a TiDB source, by `[source.sql]`."""

    threads: int = Field(4, ge=1, le=64, description="connections that read rows side by side (dumpling: --threads)")
    chunk_rows: int = Field(20_000, ge=1, le=1_000_000, description="rows of a chunk, which is read whole or again")


class Source(Section):
    """Where binlogs and schema come from."""

    pd_urls: NameList = Field(("http://127.0.0.1:2379",), description="PD addresses (TSO and registry), comma list")
    status_url: str = Field("http://127.0.0.1:10080", description="TiDB's status port: DDL history, transaction status")
    cluster_id: str = Field("", pattern=r"^[0-9]*$", description="refuse any other cluster; empty = use PD's")
    new_collation: bool = Field(
        True,
        description="false for a cluster created with new_collations_enabled_on_first_bootstrap = false, which compares"
        " all text bytewise, whatever its definitions name: the target's collations are then bytewise too",
    )
    time_zone: Annotated[str, AfterValidator(_check_zone)] = Field(
        "",
        description="time zone of the sessions that send DDL, `+08:00` or `Europe/Berlin`, for DDL whose job does not "
        "contain it: TiDB uses it to convert TIMESTAMP values; empty = DDL that depends on it is refused",
    )
    invalid_text: Literal["refuse", "latin1"] = Field(
        "refuse",
        description="handling of text whose bytes are not UTF-8, which TiDB accepts in latin1 columns: `refuse` ="
        " merge stops; `latin1` = it is read as MySQL's latin1 (windows-1252) and counted, with one alert per window"
        " and table; in columns of a unique key it is refused in either case",
    )
    second_writes: Literal["refuse", "once"] = Field(
        "refuse",
        description="TiDB logs changes twice while REORGANIZE PARTITION runs; for tables without a key, where the"
        " duplicates cannot be identified: `refuse` = merge stops; `once` = each pair is one change, with one alert per"
        " window and table; compare that table afterwards (`binlake verify --fix`): the source itself may hold such"
        " rows twice",
    )
    timeout_s: float = Field(10.0, gt=0, description="timeout of a call to PD, a pump or the status port, in seconds")
    security: Security = Field(Security())
    sql: SourceSql | None = Field(None, description="absent = the DDL history comes from the status port")
    snapshot: SourceSnapshot = Field(SourceSnapshot())

    @property
    def expected_cluster(self) -> int:
        """`cluster-id` as a number; 0 = it is not configured."""
        return int(self.cluster_id or 0)


class Lake(Section):
    """Where the Delta tables live."""

    path: str = Field(description="root folder or URI; tables are under <path>/<replication>/")
    retention_days: int = Field(400, ge=1, description="days of time travel on mirrors (set when a mirror is created)")


class Window(Section):
    """How far one window may reach."""

    max_seconds: int = Field(
        3600,
        ge=1,
        description="longest window, in seconds of commit_ts; after an empty window, twice its length if more",
    )
    stop_at: tuple[TsText, ...] = Field((), description="commit_ts that no window crosses, ascending")
    blocked_alert_s: int = Field(600, ge=1, description="a run that is blocked for longer than this fails")
    max_bytes: int | None = Field(
        None,
        ge=0,
        description="limit of the bytes of binlogs in a window (at least one transaction): land ends the window there,"
        " the rest belongs to the next one; absent = 67108864 where one task runs all stages, window after window"
        " (layout `fused`, `binlake window run`), no limit where a run processes one window (`stages`);"
        " 0 = no limit except max-seconds",
    )
    driver_bytes: int = Field(
        64 << 20,
        ge=0,
        le=512 << 20,
        description="a window of at most this many bytes is pulled by the driver itself, which is faster than Spark's"
        " workers; 0 = the workers always pull and decode (if the driver cannot reach the pumps' data ports, say)",
    )


class TargetTable(TableName):
    """Tables of the target whose definition differs from the source's; names are those at the target, or ~regex. The
    first entry that matches counts. `binlake preflight` names every difference."""

    preserve: bool = Field(
        False, description="the target has columns of its own, or another primary key: their values are kept"
    )
    accept: tuple[str, ...] = Field((), description="accepted differences, each in the exact words of preflight")


_BATCH, _ORDERED_BATCH = 1000, 100
"""Rows of a batch: where the order inside a phase does not matter, and where it does (DM's)."""


class Target(Section):
    """The SQL sink."""

    db_type: Dialect = Field("mysql", description="dialect of the target")
    host: str = Field("127.0.0.1", description="host name or address")
    port: int = Field(3306, ge=1, le=65535, description="TCP port")
    user: str = Field("root", description="user; see the runbook for the privileges")
    password: str = Field("", repr=False, description="password; `env:NAME` reads it from the environment")
    mode: Literal["atomic", "parallel", "ordered", "auto"] = Field(
        "atomic",
        description="`atomic`: a segment appears at once; `parallel`: batches over worker-count connections; `ordered`:"
        " every row change in commit order; `auto`: atomic within max-segment-rows and -bytes, parallel above",
    )
    safe_mode: SafeMode = Field(
        "always",
        description="`always` (or true): writes are REPLACE; `auto` (or false): only where rows of the window may be on"
        " the target already, else INSERT … ON DUPLICATE KEY UPDATE where that is the same; `never`: as if clean",
    )
    safe_mode_duration_s: float = Field(
        60.0, ge=0, description="seconds of commit time after an unclean checkpoint that another writer left (DM's)"
    )
    worker_count: int = Field(
        16, ge=1, le=1024, description="connections of the modes parallel and ordered (drainer's default)"
    )
    batch: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        alias="txn-batch",
        description="rows per statement, and per transaction in the modes parallel and ordered. `auto`: DM's 100 in"
        " `ordered` (the drainer's was 20); 1000 elsewhere, which costs both sides a third less",
    )
    multiple_rows: bool = Field(
        False,
        description="`ordered`: consecutive changes of one kind become one statement (as in DM); other modes always"
        " do this",
    )
    conflict_strategy: Literal["causality", "flush"] = Field(
        "causality",
        description="`ordered`: which change waits for all earlier ones: one that links two groups of keys (DM), or"
        " one that touches any key in flight (drainer)",
    )
    max_segment_rows: int = Field(
        5_000_000, ge=1, description="rows one transaction may hold; above it `atomic` fails, `auto` goes parallel"
    )
    max_segment_bytes: int = Field(
        1 << 30, ge=1, description="bytes of SQL text one transaction may hold; above it as with max-segment-rows"
    )
    impossible_changes: Literal["fail", "last"] = Field(
        "fail",
        description="changes of one key inside a segment that contradict each other (INSERT of a row that exists):"
        " `fail` names key and commit_ts; `last` uses the last one, as always where filters dropped changes of the"
        " window. Not in `ordered`, where the target itself refuses them",
    )
    on_table_error: Literal["stop", "set-aside"] = Field(
        "stop",
        description="a table that cannot be applied (missing, of another definition, a DDL or row refused, a"
        " written key absent): `stop`: all tables wait until it is fixed, or set aside by `binlake table aside`;"
        " `set-aside`: the others continue, `consistent` is false until `binlake table back`",
    )
    most_set_aside: int = Field(
        10,
        ge=1,
        description="`set-aside` stops instead if more tables would be set aside: then the tables are hardly the cause",
    )
    verify_after_ddl_rows: int = Field(
        200_000,
        ge=0,
        description="a table of at most this many rows, as the target estimates them, is compared with the lake"
        " (else the source) after a DDL that converts, fills or removes its rows; 0 = none",
    )
    sync_mode: Literal[1, 2] = Field(
        1, description="1: every column of the source; 2 (drainer's partial): only those that the target's table has"
    )
    tables: tuple[TargetTable, ...] = Field((), description="tables whose definition differs from the source's")
    checkpoint_schema: str = Field("tidb_binlog", description="database of the checkpoint and Binlake's own tables")
    connect_timeout_s: float = Field(10.0, gt=0, description="seconds to connect")
    lease_s: int = Field(30, ge=1, description="seconds a silent finalize keeps its lease")
    graceful_stop_timeout_s: float = Field(
        10.0, ge=0, description="seconds that started statements may still take after SIGTERM, then they are killed"
    )

    @property
    def batch_rows(self) -> int:
        """The rows of a batch."""
        if self.batch != "auto":
            return self.batch
        return _ORDERED_BATCH if self.mode == "ordered" else _BATCH


class Relay(Section):
    """Relay files: a window's statements beside the lake, for `binlake recover` when the lake is gone too."""

    log_dir: str = Field(
        "",
        repr=False,
        description="folder of the files, any mounted path, or `s3://bucket/prefix?...` with a sink URI's words; empty"
        " = no relay files: the lake has the statements anyway",
    )
    max_file_size: int = Field(
        10_485_760, gt=0, description="bytes after which a file is closed, at the end of a batch (the drainer's)"
    )


class Mirror(Section):
    """Typed Delta replicas."""

    enabled: bool = Field(True, description="write <lake>/<replication>/mirror/<db>/<table>")


class Replication(Section):
    """One replication: a source cluster, a lake, and its sinks."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$", description="name; also the DAG id and the lake folder")
    initial_commit_ts: TsText = Field(
        "-1",
        description="where a new replication starts, exclusive; -1 = now, 0 = the beginning. Used once: a different"
        " value for a lake that has data is an error",
    )
    show_row_values: bool = Field(
        False,
        description="show values of rows in errors and logs; else lengths, and marks of keys (docs/operate/audit.md)",
    )
    source: Source = Field(Source())
    lake: Lake
    window: Window = Field(Window())
    filter: Filter = Field(Filter())
    block_allow_list: BlockAllowList | None = Field(None, description="DM's table lists instead of those of `[filter]`")
    filters: tuple[EventRule, ...] = Field((), description="event filter: kinds of changes to drop")
    routes: tuple[RouteRule, ...] = Field((), description="names at the target")
    shard_mode: ShardMode = Field(
        "",
        description="DDL of tables that share a target: empty = the target has the widest of their definitions, and"
        " where none of them is that the pipeline stops; `optimistic`: it has their joined definition, which none of"
        " them need have; `pessimistic`: a DDL waits until all of them have it, and so do the rows after it",
    )
    shard_lock_alert_s: int = Field(
        3600, ge=0, description="pessimistic: an alert when rows wait for longer, in seconds of commit time; 0 = none"
    )
    expression_filter: tuple[ExpressionRule, ...] = Field((), description="rows to drop by an SQL expression")
    ddl_replacement: tuple[DdlReplacement, ...] = Field((), description="statements instead of single DDL")
    ddl_injection: tuple[DdlInjection, ...] = Field((), description="statements to run on the target between changes")
    loopback: Loopback = Field(Loopback())
    target: Target | None = Field(None, description="absent = no SQL sink")
    relay: Relay = Field(Relay())
    mirror: Mirror = Field(Mirror())
    feed: tuple[Feed, ...] = Field((), description="feeds of row changes as messages, each a sink of its own")
    validation: Validation = Field(Validation())
    airflow: Airflow = Field(Airflow())

    @model_validator(mode="after")
    def _require_one_table_filter(self) -> Replication:
        lists = {"ignore_schemas", "ignore_table", "replicate_do_db", "replicate_do_table"}
        both = sorted(lists & self.filter.model_fields_set)
        if self.block_allow_list is not None and both:
            key = both[0].replace("_", "-")
            raise ValueError(f"tables are chosen by `block-allow-list` or by `filter.{key}`, not by both")
        return self

    @model_validator(mode="after")
    def _require_safe_mode_with_filters(self) -> Replication:
        drops = [
            key for key, rules in (("filters", self.filters), ("expression-filter", self.expression_filter)) if rules
        ]
        if drops and self.target is not None and self.target.mode == "ordered" and self.target.safe_mode != "always":
            raise ValueError(
                f"target.mode = ordered with `{drops[0]}` needs safe-mode = always: a plain INSERT or UPDATE meets "
                "rows that the source no longer has, or does not have yet"
            )
        return self

    @model_validator(mode="after")
    def _require_net_changes_for_holds(self) -> Replication:
        if self.shard_mode != "pessimistic":
            return self
        if self.target is not None and self.target.mode == "ordered":
            raise ValueError(
                "shard-mode = pessimistic with target.mode = ordered: held rows would arrive after later ones"
            )
        if self.feed:
            raise ValueError(
                "shard-mode = pessimistic with [[feed]]: a feed publishes in commit order and waits for no table; give"
                " the feeds a replication of their own, or use optimistic"
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

    def stages(self) -> tuple[Stage, ...]:
        """The stages of its windows: those of the lake, then those of each of its sinks."""
        feeds = [feed.name for feed in self.feed]
        validated = self.validation.mode != "off"
        return stages_for(sql=self.target is not None, mirror=self.mirror.enabled, feeds=feeds, validated=validated)

    def feed_of(self, name: str) -> Feed:
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

    def sql_target(self, *, hint: str = "add a section [target]") -> Target:
        """The SQL target. Raises ConfigError, with `hint`, when there is none."""
        if self.target is None:
            raise ConfigError("this replication has no SQL target", where={"replication": self.name}, hint=hint)
        return self.target

    def stop_points(self) -> tuple[int, ...]:
        """`window.stop-at` as sorted integers."""
        return tuple(sorted(int(ts) for ts in self.window.stop_at))

    def data_hash(self) -> str:
        """Hash of what decides the rows a window yields (filters and routes): pinned by the manifest (hazards R-40)."""
        rules = {"filter", "block_allow_list", "filters", "routes", "expression_filter", "ddl_replacement",
                 "ddl_injection", "loopback"}  # fmt: skip
        # Left out where it is not set, so that an older lake keeps its hash.
        rules |= {"shard_mode"} if self.shard_mode else set()
        values = self.model_dump(mode="json", include=rules)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


__all__ = [
    "Airflow",
    "Filter",
    "Lake",
    "Mirror",
    "Relay",
    "Replication",
    "Source",
    "TableName",
    "Target",
    "TargetTable",
    "Window",
]
