"""What a replication's TOML may say; names and defaults are the originals' where an original exists.

Every field's `description` goes into the generated configuration reference.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TsText = Annotated[str, Field(pattern=r"^(-1|[0-9]{1,20})$")]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _comma_list(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


NameList = Annotated[tuple[str, ...], BeforeValidator(_comma_list)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_kebab, populate_by_name=True)


class TableName(_Section):
    """A table pattern as the drainer has it; a leading `~` makes either part a regular expression."""

    db_name: str = Field(description="database, or ~regex")
    tbl_name: str = Field(description="table, or ~regex")


class Source(_Section):
    """Where binlogs and schema come from."""

    pd_urls: NameList = Field(("http://127.0.0.1:2379",), description="PD addresses (TSO and registry), comma list")
    status_url: str = Field("http://127.0.0.1:10080", description="TiDB's status port: DDL history, transaction status")
    cluster_id: str = Field("", pattern=r"^[0-9]*$", description="refuse any other cluster; empty = take PD's")
    timeout_s: float = Field(10.0, gt=0, description="seconds one call to PD, a pump or the status port may take")


class Lake(_Section):
    """Where the Delta tables live."""

    path: str = Field(description="root folder or URI; tables are under <path>/<replication>/")
    retention_days: int = Field(400, ge=1, description="days of time travel kept on audit tables (set at creation)")


class Window(_Section):
    """How far one window may reach."""

    max_seconds: int = Field(3600, ge=1, description="longest window, in seconds of commit_ts")
    stop_at: tuple[TsText, ...] = Field((), description="commit_ts that no window crosses, ascending")
    blocked_alert_s: int = Field(600, ge=1, description="blocked longer than this fails the run")


class Filter(_Section):
    """Which tables are replicated: the drainer's lists (reference: tidb-binlog 5.6), case-insensitive."""

    ignore_schemas: NameList = Field(
        ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql"), description="databases left out, comma list, ~regex"
    )
    ignore_table: tuple[TableName, ...] = Field((), description="tables left out")
    replicate_do_db: NameList = Field((), description="if set, only these databases (or the tables below)")
    replicate_do_table: tuple[TableName, ...] = Field((), description="if set, only these tables (or databases above)")
    ignore_txn_commit_ts: tuple[TsText, ...] = Field((), description="transactions skipped by commit_ts, in the ledger")


class Target(_Section):
    """The SQL sink."""

    db_type: Literal["mysql", "mariadb", "tidb"] = Field("mysql", description="dialect of the target")
    host: str = Field("127.0.0.1", description="host name or address")
    port: int = Field(3306, ge=1, le=65535, description="TCP port")
    user: str = Field("root", description="user; see the runbook for the privileges")
    password: str = Field("", repr=False, description="password; `env:NAME` reads it from the environment")
    mode: Literal["atomic"] = Field("atomic", description="a segment appears at once, with ledger row and checkpoint")
    safe_mode: Literal["always"] = Field("always", description="every write is a REPLACE or a DELETE by key")
    worker_count: int = Field(16, ge=1, description="connections of the parallel mode (drainer's default)")
    batch: int = Field(100, ge=1, alias="txn-batch", description="rows a statement (DM's batch; the drainer's was 20)")
    max_segment_rows: int = Field(5_000_000, ge=1, description="atomic: rows one transaction may hold; above it fails")
    checkpoint_schema: str = Field("tidb_binlog", description="database of the checkpoint and Binlake's own tables")
    connect_timeout_s: float = Field(10.0, gt=0, description="seconds to connect")
    lease_s: int = Field(30, ge=1, description="seconds a silent finalize keeps its lease")


class Mirror(_Section):
    """Typed Delta replicas."""

    enabled: bool = Field(True, description="keep <lake>/<replication>/mirror/<db>/<table>")


class Airflow(_Section):
    """How the DAG of this replication runs."""

    schedule: str = Field(
        "*/1 * * * *", description="cron text, `@continuous`-like presets, or `every Ns`; empty = none"
    )
    layout: Literal["stages", "fused"] = Field("stages", description="a task per stage, or all stages in one task")
    engine: Literal["connect", "submit"] = Field("submit", description="a warm Spark Connect server, or spark-submit")
    spark_conn_id: str = Field("spark_default", description="Airflow connection of the Spark provider")
    retries: int = Field(2, ge=0, description="tries again after a transient error")
    retry_delay_s: float = Field(5.0, ge=0, description="seconds between tries")


class Replication(_Section):
    """One replication: a source cluster, a lake, and its sinks."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$", description="name; also the DAG id and the lake folder")
    initial_commit_ts: TsText = Field("-1", description="where a new replication starts, exclusive; -1 = now")
    source: Source = Field(Source())  # type: ignore[call-arg]
    lake: Lake
    window: Window = Field(Window())  # type: ignore[call-arg]
    filter: Filter = Field(Filter())  # type: ignore[call-arg]
    target: Target | None = Field(None, description="absent = no SQL sink")
    mirror: Mirror = Field(Mirror())  # type: ignore[call-arg]
    airflow: Airflow = Field(Airflow())  # type: ignore[call-arg]

    def stop_points(self) -> tuple[int, ...]:
        """`window.stop-at` as sorted integers."""
        return tuple(sorted(int(ts) for ts in self.window.stop_at))

    def data_hash(self) -> str:
        """Hash of what decides the rows a window yields (filter): pinned by the manifest (hazards R-40)."""
        return hashlib.sha256(json.dumps(self.filter.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:16]
