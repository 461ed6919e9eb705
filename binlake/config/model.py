"""The settings of a replication's TOML. Settings that TiDB Binlog, DM or TiCDC has keep its names and defaults.

Every field's `description` goes into the generated configuration reference.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import Field, model_validator

from binlake.common.sections import (
    BlockAllowList,
    DdlInjection,
    DdlReplacement,
    EventRule,
    ExpressionRule,
    FilterSection,
    LoopbackSection,
    NameList,
    RouteRule,
    Section,
    ShardMode,
    TsText,
)
from binlake.config.airflow import AirflowSection, MaskSection
from binlake.config.feed import FeedSection
from binlake.config.servers import RelaySection, SourceSection, TargetSection, ValidationSection
from binlake.errors import ConfigError
from binlake.pipeline import LAKE, SINKS, Sink, Stage


class WindowSection(Section):
    """Limits of a window."""

    max_seconds: int = Field(
        3600,
        ge=1,
        description="greatest length of a window, in seconds of commit_ts; after an empty window, twice its length if"
        " that is more",
    )
    stop_at: tuple[TsText, ...] = Field((), description="commit_ts that no window crosses, ascending")
    blocked_alert_s: int = Field(600, ge=1, description="a run that is blocked for more than this many seconds fails")
    lag_alert_s: int = Field(
        600,
        ge=1,
        description="a lake, target or mirrors more than this many seconds behind the source are shown as `behind`, not"
        " as `running` (docs/operate/pages.md); choose more than the schedule's interval",
    )
    max_bytes: int | None = Field(
        None,
        ge=0,
        description="limit for the bytes of binlogs in a window (at least one transaction); land ends the window"
        " there, and the next window gets the rest. Absent: 33554432 if one task runs all stages of many windows"
        " (layout `fused`, `binlake window run`), else no limit (`stages`: each run processes one window). 0: only"
        " max-seconds is a limit",
    )
    driver_bytes: int = Field(
        64 << 20,
        ge=0,
        le=512 << 20,
        description="with engine `auto`: this process runs the stages of a window of at most this many bytes of"
        " binlogs, Spark those of a larger one, as one window (`make bench-engine` finds where Spark is faster);"
        " 0 = Spark always",
    )
    engine: Literal["auto", "local", "spark"] = Field(
        "auto",
        description="what runs the stages that read rows. `auto`: this process up to `driver-bytes`, Spark above them"
        " (if none is named, this process, in pieces);"
        " `local`: always this process, which then needs no Spark; `spark`: always Spark, also to pull, as when this"
        " process cannot reach the pumps' data ports, and a backlog as one window",
    )

    @property
    def most_local_bytes(self) -> int | None:
        """Bytes of binlogs up to which this process runs the stages of a window; None = always."""
        return {"auto": self.driver_bytes, "local": None, "spark": 0}[self.engine]


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
        description="`airflow:CONN_ID`: login and password of this connection are the key id and the secret key; for"
        " Azure the password is the account's key",
    )


class LakeSection(Section):
    """Where the Delta tables live."""

    path: str = Field(
        description="root folder, `s3://bucket/prefix` or `abfss://container@account.dfs.core.windows.net/prefix`;"
        " tables are under <path>/<replication>/"
    )
    storage: LakeStorage = Field(LakeStorage())
    retention_days: int = Field(400, ge=1, description="days of time travel on mirrors (set when a mirror is created)")
    keep: tuple[Literal["change", "statement"], ...] = Field(
        (),
        description="tables whose rows are always written: `change`, `statement`. Without it, a window that one process"
        " derives and applies in memory leaves them out: their digests are sealed, and whoever needs the rows derives"
        " them again",
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

    def list_sinks(self) -> tuple[Sink, ...]:
        """Its sinks, each with the stages that it has here."""
        return tuple(sink for kind in SINKS.values() for sink in kind.list_of(self))

    def list_stages(self) -> tuple[Stage, ...]:
        """The stages of its windows: those of the lake, then those of each sink."""
        return tuple(stage for sink in (LAKE, *self.list_sinks()) for stage in sink.stages)

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
