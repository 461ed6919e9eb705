"""The first start of a source: the position at which reading its log begins, and the definitions at that position.

Definitions and position become durable in one step, as jobs of the history without binlogs: everything downstream of
the pumps starts with them, and the target already has these tables. (A snapshot publishes them: `snapshot/`.)

Definitions that are known nowhere else come from the target: each current table of the source that the replication
includes gets that of the table into which it is routed, under its own name (data-migration-and-ticdc.md 1.10, S4-25).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import structlog
from pymysql import err

from binlake.config import load_replication
from binlake.errors import ConfigError, SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, TableDescription
from binlake.mysqlbinlog.dumpfolder import DumpFolder, read_dump_folder, read_dump_statements
from binlake.mysqlbinlog.model import BinlogPosition, LoggedSession, LoggedStatement
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.dump import SERVER_FACT, read_identity
from binlake.pump_service.feeder.journal import FeederJournal, ReadPosition
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.server import Link, connect, derive_flavor, read_log_end
from binlake.pump_service.feeder.settings import ServerSection, SourceFile, StartSection
from binlake.pump_service.feeder.snapshot.structures import describe_source
from binlake.pump_service.feeder.sourceerrors import build_source_error
from binlake.rules import Rules

_HEAD = re.compile(r"^CREATE TABLE `(?:[^`]|``)+`")


def describe_by_target(source: SourceFile, now: Iterable[DatabaseDescription], file: Path) -> list[DatabaseDescription]:
    """`now`, the source's databases, with the definitions of the target of the replication in `file`.

    Raises ConfigError, SourceUnavailable, and SourceRefused naming a table that the target lacks.
    """
    replication = load_replication(file)
    target = replication.require_sql_target(hint="`start.target` names a replication with a section [target]")
    rules = Rules.of(replication)
    server = ServerSection(host=target.host, port=target.port, user=target.user, password=target.password)
    with closing(connect(server)) as link:
        target_tables = {(db.name, table.name): table for db in describe_source(link) for table in db.tables}
    databases = []
    for database in now:
        shown = source.derive_database_name(database.name)
        tables = [
            _rename_table(_find_target_table(target_tables, rules, shown, own.name), own)
            if rules.keeps(shown, own.name)
            else own
            for own in database.tables
        ]
        databases.append(replace(database, tables=tuple(tables)))
    return databases


def _find_target_table(
    target_tables: dict[tuple[str, str], TableDescription], rules: Rules, db: str, table: str
) -> TableDescription:
    name = rules.routes.map_table(db, table)
    if name not in target_tables:
        raise SourceRefused(
            "the target does not have this table, whose definition is to be used for the source's",
            where={"table": f"{db}.{table}", "target": ".".join(name)},
            hint="create it there as the source had it at the start position, exclude it by the replication's filter,"
            " or use a dump (`definitions`)",
        )
    return target_tables[name]


def _rename_table(table: TableDescription, own: TableDescription) -> TableDescription:
    quoted = own.name.replace("`", "``")
    create = _HEAD.sub(lambda _: f"CREATE TABLE `{quoted}`", table.create, count=1)
    return replace(table, db=own.db, name=own.name, create=create)


_SESSION = LoggedSession(sql_mode=0, time_zone="+00:00", explicit_defaults_for_timestamp=True)


def read_schema_files(dump: DumpFolder) -> list[LoggedStatement]:
    """The statements of a dump's schema files, databases first. Raises ConfigError for a damaged file."""
    files = [*(("", file) for file in dump.databases.values()), *((db, file) for (db, _), file in dump.tables.items())]
    return [LoggedStatement(db, text, _SESSION) for db, file in files for text in read_dump_statements(file)]


log = structlog.get_logger()

_TRIES = 10  # times the definitions are read before giving up because DDL keeps running


def start_at_log(source: SourceFile, journal: FeederJournal, publisher: SourcePublisher, catalog: Catalog) -> None:
    """Make the position of `source.start` and its definitions durable: those of a dump, the target or the source now.

    Raises ConfigError, SourceUnavailable, SourceRefused, SchemaError.
    """
    start = source.start
    dump = read_dump_folder(start.definitions) if start.definitions is not None else None
    dumped = read_schema_files(dump) if dump is not None else None
    end, databases, facts = BinlogPosition("", 4), list[DatabaseDescription](), dict[str, str]()
    if dumped is None or start.mode == "now":
        databases, end, server = _read_source(source)
        if start.mode == "now":
            facts = {SERVER_FACT + source.name: server}
    if start.target is not None:
        databases = describe_by_target(source, databases, start.target)
    position = _choose_start_position(start, end, dump)
    with catalog.lock:
        first = catalog.adopt(source.name, databases) if dumped is None else catalog.follow_all(source.name, dumped)
        ts = publisher.fetch_ts(source.name)
        journal.commit(
            [], {source.name: ReadPosition(position)}, jobs=[change.build_job(ts, ts) for change in first], facts=facts
        )
    log.info(
        "source_started",
        source=source.name,
        mode=start.mode,
        definitions=len(first),
        **_build_position_fields(position),
    )


def _choose_start_position(start: StartSection, end: BinlogPosition, dump: DumpFolder | None) -> BinlogPosition:
    """Where reading the log begins; `end`: where the log ends now; `dump`: the dump with the definitions."""
    if start.mode == "dump" and dump is not None:
        dumped_at = dump.position
        if dumped_at.commit_ts:
            raise ConfigError(
                "this is a dump of TiDB; the feeder reads MySQL and MariaDB",
                where={"folder": dump.path},
                hint="binlake checkpoint set --base: pumps fed by TiDB need no feeder",
            )
        return dumped_at.position
    if start.mode == "now":
        return end
    return BinlogPosition("", 4, start.gtid) if start.mode == "gtid" else BinlogPosition(start.file, start.offset)


def _read_source(source: SourceFile) -> tuple[list[DatabaseDescription], BinlogPosition, str]:
    """The source's definitions, the end of its log at which they hold, and the server that has both."""
    try:
        with closing(connect(source)) as link:
            databases, end = _read_definitions_at_end(link)
            return databases, end, read_identity(link, derive_flavor(link)).uuid
    except err.Error as error:
        raise build_source_error(error) from error


def _read_definitions_at_end(link: Link) -> tuple[list[DatabaseDescription], BinlogPosition]:
    """The definitions, and an end of the log at which they hold: they read the same before and after it."""
    before = describe_source(link)
    for _ in range(_TRIES):
        end = read_log_end(link)
        after = describe_source(link)
        if after == before:
            return after, end
        before = after
    raise SourceUnavailable(
        "the source's definitions keep changing", hint="reading begins as soon as its DDL has finished"
    )


def _build_position_fields(position: BinlogPosition) -> dict[str, object]:
    return {"file": position.file, "offset": position.offset, "gtids": position.gtids}
