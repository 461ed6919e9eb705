"""The settings of `binlake reparo`: the keys of the original's toml, which its flags override.

Binlake adds the keys `name` (of the progress), `checkpoint-schema`, `time-zone`, `window-rows`, `mode` and others.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, ValidationError

from binlake import tso
from binlake.binlogfile.folder import BinlogIndex
from binlake.common.secrets import resolve_secret
from binlake.common.sections import FilterSection, HostText, NameList, Section, SqlSecurity, TableName
from binlake.common.tomlfile import WITH_MARK, describe_problem
from binlake.config.servers import TargetSection
from binlake.errors import ConfigError
from binlake.rules.tables import TableFilter

UTC = "UTC"
MAX_CLUSTER = (1 << 63) - 1


class DestDb(Section):
    """The section [dest-db]: the database that gets the rows."""

    host: HostText = Field("127.0.0.1", description="host name or address")
    port: int = Field(3306, ge=1, le=65535, description="TCP port")
    user: str = Field("root", description="user")
    password: str = Field("", repr=False, description="password, or `env:NAME`")
    security: SqlSecurity = SqlSecurity()
    name: str = Field("", description="accepted but not used, as by the original")


class ReparoSettings(Section):
    """The settings of one run, from its toml and flags."""

    data_dir: str = Field(min_length=1, description="folder of the binlog files, or a URI: file:, s3:, gs:, azure:")
    base: str = Field("", description="folder of a dump (dumpling, mydumper) that is loaded before the files")
    base_ts: int = Field(0, ge=0, le=tso.MAX_TS, description="the dump's commit_ts, if its metadata has none")
    start_datetime: str = Field("", description="begin with this time (`2026-11-23 15:00:00`, local time)")
    stop_datetime: str = Field("", description="end with this time")
    start_tso: int = Field(0, ge=0, le=tso.MAX_TS, description="begin with this commit_ts; 0 = the first file")
    stop_tso: int = Field(0, ge=0, le=tso.MAX_TS, description="end with this commit_ts; 0 = the last file")
    txn_batch: int = Field(1000, ge=1, description="rows per statement (the original's default was 20)")
    worker_count: int = Field(16, ge=1, le=1024, description="connections in mode parallel")
    dest_type: Literal["print", "mysql", "mariadb", "tidb"] = Field("print", description="print, or the target's type")
    dest_db: DestDb = DestDb()
    replicate_do_db: NameList = Field((), description="if set, only these databases (or the tables below); ~regex")
    replicate_do_table: tuple[TableName, ...] = Field((), description="if set, only these tables (or databases above)")
    replicate_ignore_db: NameList = Field((), description="databases left out")
    replicate_ignore_table: tuple[TableName, ...] = Field((), description="tables left out")
    safe_mode: bool = Field(False, description="use REPLACE throughout; otherwise only where rows may exist already")
    log_level: str = Field("info", alias="log-level", description="accepted but not used")
    log_file: str = Field("", description="accepted but not used: events go to stderr")
    name: str = Field("reparo", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="name of the progress at the target")
    checkpoint_schema: str = Field("binlake_reparo", description="database of the progress and the ledger")
    time_zone: str = Field("", description="zone of TIMESTAMPs in the files; empty: as their index says, else UTC")
    torn_end: bool = Field(False, description="the last file may end inside a record, as a drainer is still writing it")
    window_rows: int = Field(50_000, ge=1, description="rows that are applied together, in whole transactions")
    mode: Literal["atomic", "parallel", "auto"] = Field("atomic", description="as target.mode of a replication")

    @property
    def start(self) -> int:
        """The lowest commit_ts of the range; 0 = no limit."""
        return self.start_tso or (_parse_ts(self.start_datetime, "start-datetime") if self.start_datetime else 0)

    @property
    def stop(self) -> int:
        """The highest commit_ts of the range; 0 = no limit. A time means its first instant, as in the original."""
        if self.stop_tso or not self.stop_datetime:
            return self.stop_tso
        return _parse_ts(self.stop_datetime, "stop-datetime")

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of TIMESTAMPs in the files. Raises ConfigError."""
        try:
            return ZoneInfo(self.time_zone or UTC)
        except (ZoneInfoNotFoundError, ValueError):
            raise ConfigError(
                "the time zone is unknown",
                where={"time-zone": self.time_zone},
                hint="use a name such as Europe/Berlin, or UTC",
            ) from None

    def with_zone_of(self, index: BinlogIndex | None) -> ReparoSettings:
        """The settings with the time zone of the files' `index`. Raises ConfigError if another one is set."""
        said = "" if index is None else index.time_zone
        if said and self.time_zone not in ("", said):
            raise ConfigError(
                "the files' index has another time zone",
                where={"time-zone": self.time_zone, "files": said},
                hint="omit time-zone",
            )
        return self.model_copy(update={"time_zone": self.time_zone or said or UTC})

    @property
    def cluster_id(self) -> int:
        """The number of the checkpoint, unique for this name."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big") % MAX_CLUSTER + 1

    def build_table_filter(self) -> TableFilter:
        """The filter of tables, with the drainer's rules. Raises ConfigError."""
        return TableFilter(
            FilterSection(
                ignore_schemas=self.replicate_ignore_db,
                ignore_table=self.replicate_ignore_table,
                replicate_do_db=self.replicate_do_db,
                replicate_do_table=self.replicate_do_table,
            )
        )

    def build_target(self) -> TargetSection:
        """The target for the guarded apply. Raises ConfigError for dest-type print and a secret that is not set."""
        if self.dest_type == "print":
            raise ConfigError("dest-type print writes to no database", hint="set dest-type and [dest-db]")
        return TargetSection(
            db_type=self.dest_type,
            host=self.dest_db.host,
            port=self.dest_db.port,
            user=resolve_secret(self.dest_db.user, "dest-db.user", "user"),
            password=resolve_secret(self.dest_db.password, "dest-db.password"),
            security=self.dest_db.security,
            mode=self.mode,
            safe_mode="always" if self.safe_mode else "auto",
            worker_count=self.worker_count,
            batch=self.txn_batch,
            checkpoint_schema=self.checkpoint_schema,
        )

    def compute_data_hash(self) -> str:
        """A hash of all settings that affect the statements. An open window can only continue with the same hash."""
        named = ("txn_batch", "replicate_do_db", "replicate_do_table", "replicate_ignore_db", "replicate_ignore_table")
        values = self.model_dump_json(include={*named, "time_zone", "dest_type"})
        return hashlib.sha256(values.encode()).hexdigest()


def read_settings(file: str, flags: Mapping[str, object]) -> ReparoSettings:
    """The settings of the toml `file` (empty: none), overridden by `flags` (kebab-case; None = not given).

    Raises ConfigError.
    """
    values: dict[str, Any] = _read_toml(file) if file else {}
    values |= {key: value for key, value in flags.items() if value is not None}
    try:
        settings = ReparoSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"a setting is wrong: {describe_problem(first)}", where={"key": place, "file": file or "flags"},
            hint="`binlake reparo --help` and docs/operate/reparo.md list all settings",
        ) from None  # fmt: skip
    start, stop = settings.start, settings.stop
    if stop and start > stop:
        raise ConfigError("the range is empty", where={"start": start, "stop": stop}, hint="stop at or after the start")
    return settings


def _read_toml(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding=WITH_MARK))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the configuration cannot be read: {error}", where={"file": file}) from error


def _parse_ts(text: str, key: str) -> int:
    """The first timestamp of a local time, as in the original. For an ambiguous local time, the earlier one."""
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ConfigError("a time cannot be read", where={key: text}, hint="write 2026-11-23 15:00:00") from None
    return tso.from_datetime(moment)
