"""feeder.toml: the servers a feeder reads, where each one starts, and the cluster it presents downstream.

Unknown keys are errors. A password is text, or `env:NAME` for the environment variable NAME.
"""

from __future__ import annotations

import zlib
from collections import Counter
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from binlake.common.sections import BlockAllowList, HostText, NameList, Section, SecuritySection, SqlSecurity
from binlake.common.sql import Dialect
from binlake.common.tomlfile import build_readable_error, read_toml
from binlake.config.command import render_model
from binlake.config.load import resolve_server
from binlake.config.problems import find_plain_password
from binlake.errors import ConfigError
from binlake.mysqlbinlog.charsets import InvalidText
from binlake.rpc import Tls
from binlake.rules.tables import BlockAllow

_HEAD = """# The feeder's configuration

`binlake feeder run --config feeder.toml`. Unknown keys are errors. Passwords: `env:NAME` reads the environment,
`airflow:CONN_ID` the variable `AIRFLOW_CONN_CONN_ID` ([secrets](../operate/hardening.md#passwords))."""

_OWN_IDS = 1 << 31  # server ids of feeders are above those that people assign to servers
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_DEFAULT_PORT = 3306


class ClusterTls(SecuritySection):
    """TLS towards PD where its URL is https://, and towards pumps when any file is given."""


class StatusTls(SecuritySection):
    """TLS of the status port, when any file is given; `source.status-url` of tasks and `status-url` of pumps are then
    https://."""

    ssl_ca: str = Field("", description="PEM file of the authority that signs callers; if set, callers must show one")
    ssl_cert: str = Field("", description="PEM file of the feeder's certificate")
    ssl_key: str = Field("", description="PEM file of its key")
    cert_allowed_cn: NameList = Field((), description="common names that callers may have; empty = any")

    def to_tls(self) -> Tls | None:
        """None = no TLS."""
        return Tls.of(*self.list_files(), self.cert_allowed_cn)

    @model_validator(mode="after")
    def _require_certificate(self) -> StatusTls:
        if (any(self.list_files()) or self.cert_allowed_cn) and not (self.ssl_cert and self.ssl_key):
            raise ValueError("a port with TLS needs `ssl-cert` and `ssl-key`")
        return self


class ServerSection(Section):
    """The connection to a MySQL or MariaDB server."""

    host: HostText = Field("127.0.0.1", min_length=1, description="host name or address")
    port: int = Field(_DEFAULT_PORT, ge=1, le=65535, description="TCP port")
    user: str = Field("root", description="user; its privileges: docs/operate/feeder.md")
    password: str = Field("", repr=False, description="password: `env:NAME` or `airflow:CONN_ID`")
    security: SqlSecurity = SqlSecurity()


class StartSection(Section):
    """Where a source is read from when the feeder starts it for the first time; later its stored position counts."""

    mode: Literal["snapshot", "now", "gtid", "position", "dump"] = Field(
        "snapshot",
        description="`snapshot` = all rows first, then the log from that position; the others read the log only: from"
        " the server's current end, after `gtid`, from `file` and `offset`, or from where `definitions` was dumped",
    )
    gtid: str = Field("", description="GTID set that the base already contains, in the server's own spelling")
    file: str = Field("", description="log file, `mysql-bin.000004`")
    offset: int = Field(4, ge=4, description="byte of `file` at which an event begins")
    definitions: Path | None = Field(
        None,
        description="folder of a dump of mydumper or dumpling with the definitions at that position; empty = those that"
        " the source has now, which must be the same",
    )
    target: Path | None = Field(
        None,
        description="replication file whose target has the tables as the source had them at that position: the target's"
        " definitions are used, when neither a dump nor the source's present tables have them",
    )

    @model_validator(mode="after")
    def _check_mode(self) -> StartSection:
        if (self.mode == "gtid") != bool(self.gtid):
            raise ValueError('`gtid` belongs to mode = "gtid"')
        if (self.mode == "position") != bool(self.file):
            raise ValueError('`file` belongs to mode = "position"')
        if self.mode == "dump" and self.definitions is None:
            raise ValueError('`definitions` must name the folder of the dump for mode = "dump"')
        if self.mode == "snapshot" and (self.definitions is not None or self.target is not None):
            raise ValueError('mode = "snapshot" reads the definitions itself: leave `definitions` and `target` out')
        if self.definitions is not None and self.target is not None:
            raise ValueError("the definitions come from `definitions` or from `target`, not from both")
        return self


class SnapshotSection(Section):
    """How a snapshot is read."""

    threads: int = Field(4, ge=1, le=64, description="connections that read rows in parallel (DM: mydumpers.threads)")
    rows_per_second: int = Field(
        0, ge=0, description="rows that the load reads in a second, at most, on average over its ranges; 0 = no limit"
    )
    chunk_rows: int = Field(20_000, ge=1, description="rows of a chunk, and at most of a transaction that has them")
    form: Literal["rows", "columns"] = Field(
        "columns",
        description="how the pumps get the rows: as TiDB's, which any consumer reads, or as columns, which cost less"
        " and which an original Drainer refuses",
    )
    block_allow_list: BlockAllowList | None = Field(
        None,
        description="DM's lists, with the source's own names: rows of other tables are not loaded; their definitions"
        " and logged changes are sent anyway, for the replication to filter out",
    )

    def loads(self, db: str, table: str) -> bool:
        """True when the rows of `db`.`table` are read."""
        return self._lists is None or self._lists.keeps(db, table)

    @cached_property
    def _lists(self) -> BlockAllow | None:
        return BlockAllow(self.block_allow_list) if self.block_allow_list is not None else None


class ReplacementSection(Section):
    """A transaction whose statement cannot be followed as it is (DM: `binlog replace`, `binlog skip`)."""

    id: str = Field(min_length=1, description="the transaction: its GTID as in the error message, or `file:offset`")
    statements: tuple[str, ...] = Field((), description="DDL to follow instead; none = the statement is skipped")


class TrackerSection(ServerSection):
    """A server of the sources' family on which the feeder may create databases (`binlake_tracker_SOURCE__DB`): it
    executes their DDL in empty tables there, to learn the definitions. A source of another family has its own."""

    statement_timeout: float = Field(
        60.0, ge=10, description="seconds for a statement on empty tables: then the feeder reconnects"
    )


class SourceFile(ServerSection):
    """One server (or a topology of servers with the same log); `name` is DM's source-id."""

    name: str = Field(pattern=_NAME, description="unique name; part of each transaction's identity: never change it")
    addresses: NameList = Field(
        (), description="further servers of the same topology, `host:port`: tried in turn when this one is down (GTIDs)"
    )
    server_id: int = Field(
        0, ge=0, lt=1 << 32, description="as a replica: unique among all servers; 0 = derived from the feeder's name"
    )
    rename_schema: str = Field(
        "", description="template that makes database names of several sources distinct: `{source}_{schema}`"
    )
    read_timeout: float = Field(30.0, gt=0, description="seconds without a heartbeat: the feeder reconnects")
    heartbeat: float = Field(5.0, gt=0, description="seconds between the heartbeats requested from the server")
    max_transactions: int = Field(2_000, ge=1, description="source transactions published together, at most")
    max_bytes: int = Field(8 << 20, ge=1, description="bytes of the log published together, about")
    ignore_tables: NameList = Field(
        (),
        description="tables neither defined nor read: `db.table`, `*` and `?` match; `db.*` is all of `db`",
    )
    invalid_text: InvalidText = Field(
        "refuse",
        description="bytes that are no character of their column's charset (such as 0x83 in cp1250), in the full load"
        " and in the log: `refuse` = the source stops and names the column; `replace` = each becomes a question mark,"
        " except in columns of a unique key",
    )
    replace: tuple[ReplacementSection, ...] = Field((), description="statements of the log to be replaced")
    unlogged_cascades: Literal["stop", "none"] = Field(
        "stop",
        description="when a foreign key may have changed rows that are not in the log (CASCADE, SET NULL): stop; none ="
        " the application always changes such rows itself before, so no foreign key ever changes one",
    )
    start: StartSection = StartSection()
    snapshot: SnapshotSection = SnapshotSection()
    tracker: TrackerSection | None = Field(None, description="tracker for this source only, if it is of another family")

    @property
    def servers(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of each server that may be read."""
        return ((self.host, self.port), *map(_parse_address, self.addresses))

    @model_validator(mode="after")
    def _check_names(self) -> SourceFile:
        if self.rename_schema and "{schema}" not in self.rename_schema:
            raise ValueError("`rename-schema` has no `{schema}` in it")
        if self.rename_schema:
            try:
                self.derive_database_name("x")
            except (KeyError, IndexError, ValueError):
                raise ValueError("`rename-schema` may contain only `{source}` and `{schema}`") from None
        _ = self.servers
        return self

    def ignores(self, db: str, table: str) -> bool:
        """True for a table that is left out, and for a database (`table` "") whose tables all are."""
        name = f"{db}.{table or '*'}".lower()
        patterns = (pattern.lower() for pattern in self.ignore_tables)
        return any(fnmatchcase(name, pattern) and (bool(table) or pattern.endswith(".*")) for pattern in patterns)

    def find_replacement(self, transaction: str) -> ReplacementSection | None:
        """The replacement for the statement of `transaction`; None = it is followed itself."""
        return next((replacement for replacement in self.replace if replacement.id == transaction), None)

    def derive_database_name(self, schema: str) -> str:
        """The name that the source's database `schema` has downstream."""
        return self.rename_schema.format(source=self.name, schema=schema) if self.rename_schema else schema


class FeederFile(Section):
    """One feeder: it presents its sources downstream as one cluster."""

    name: str = Field("feeder", pattern=_NAME, description="its name in the registry; one live process may have it")
    pd_urls: NameList = Field(("http://127.0.0.1:2379",), description="PD addresses, comma list")
    data_dir: Path = Field(Path("data.feeder"), description="folder of the journal; never lose it or restore a copy")
    status_addr: str = Field(
        "127.0.0.1:10080", description="HOST:PORT of its status port: `source.status-url` of tasks"
    )
    strategy: str = Field("range", description="which pump gets a transaction: range, hash or score")
    label: dict[str, str] = Field({}, description="only pumps with each of these labels")
    keep_days: float = Field(
        30.0, gt=0, description="days for which it answers a pump's question about a finished transaction"
    )
    plain_passwords: NameList = Field(
        (),
        description="keys whose password may be in this file itself: `source.NAME.password`, `tracker.password`,"
        " `source.NAME.tracker.password`; others name it: `env:NAME`, `airflow:CONN_ID`",
    )
    security: ClusterTls = ClusterTls()
    status_security: StatusTls = StatusTls()
    target_families: tuple[Dialect, ...] = Field(
        (),
        description="what kinds of servers its replications write to: `mariadb`, `mysql`, `tidb`. A full load of a"
        " table with a collation that one of them lacks is refused before it reads a row; empty = not known: the first"
        " window refuses it",
    )
    tracker: TrackerSection | None = Field(None, description="tracker for the sources without their own")
    source: tuple[SourceFile, ...] = Field(min_length=1, description="the servers to read")

    @model_validator(mode="after")
    def _check_sources(self) -> FeederFile:
        for what, values in (
            ("name", [source.name for source in self.source]),
            ("server-id", [self.choose_server_id(source) for source in self.source]),
        ):
            for value, times in Counter(values).items():
                if times > 1:
                    raise ValueError(f"two sources have the {what} {value}")
        if self.tracker is None and (without := [source.name for source in self.source if source.tracker is None]):
            raise ValueError(f"there is no `tracker`, and these sources have none of their own: {', '.join(without)}")
        return self

    def choose_tracker(self, source: SourceFile) -> TrackerSection:
        """The server that executes the DDL of `source`."""
        tracker = source.tracker or self.tracker
        assert tracker is not None
        return tracker

    def choose_server_id(self, source: SourceFile) -> int:
        """The id under which this feeder registers at `source`."""
        return source.server_id or _OWN_IDS + zlib.crc32(f"{self.name}/{source.name}".encode()) % (_OWN_IDS - 1)


def render_settings() -> str:
    """The configuration reference of the feeder."""
    return render_model(_HEAD, FeederFile)


def read_settings(path: Path) -> FeederFile:
    """The settings in `path`, passwords resolved. Raises ConfigError."""
    try:
        values = read_toml(path)
    except OSError as error:
        raise ConfigError(
            f"the configuration file cannot be read: {error.strerror}",
            where={"file": path},
            hint="name it with --config; docs/operate/feeder.md explains its keys",
        ) from None
    try:
        settings = FeederFile.model_validate(values)
    except ValidationError as error:
        raise build_readable_error(error, FeederFile, path) from None
    _require_named_passwords(settings, path)
    sources = tuple(
        _with_tracker(resolve_server(f"source {source.name}", source, path), path) for source in settings.source
    )
    tracker = settings.tracker and resolve_server("tracker", settings.tracker, path)
    return settings.model_copy(update={"source": sources, "tracker": tracker})


def _require_named_passwords(settings: FeederFile, path: Path) -> None:
    servers: list[tuple[str, ServerSection | None]] = [("tracker", settings.tracker)]
    for source in settings.source:
        servers += [(f"source.{source.name}", source), (f"source.{source.name}.tracker", source.tracker)]
    problems = [
        line
        for key, server in servers
        if server is not None
        for line in find_plain_password(f"{key}.password", server.password, settings.plain_passwords)
    ]
    if problems:
        raise ConfigError("; ".join(problems), where={"file": path}, hint="see docs/operate/hardening.md")


def _with_tracker(source: SourceFile, path: Path) -> SourceFile:
    if source.tracker is None:
        return source
    return source.model_copy(update={"tracker": resolve_server(f"source {source.name}.tracker", source.tracker, path)})


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, _DEFAULT_PORT
    if not port.isdecimal() or not host:
        raise ValueError(f"{text!r} is not `host:port`")
    return host, int(port)
