"""Sources that come and go: where reading a new one begins, and what remains of one that is not configured any more.

The first start of a source makes position and definitions durable in one step, as jobs of the history without binlogs:
everything downstream of the pumps starts with them, and the target already has these tables. (A snapshot publishes
them: `snapshot/`.) Definitions that are known nowhere else come from the target: each current table of the source that
the replication includes gets that of the table into which it is routed, under its own name
(data-migration-and-ticdc.md 1.10, S4-25).

Nothing that a removed source left open blocks the other sources. Its unfinished load is rolled back as a whole, in one
durable step: if the source returns under its name, the load starts again. A source past its load keeps its position and
resumes there when it returns; what it left open is decided as for any source at a start: commits in the journal are
resent, everything else is rolled back. The status port answers for both as long as the journal knows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from binlake.pump_service.feeder.server import Link, build_source_error, connect, derive_flavor, read_log_end
from binlake.pump_service.feeder.settings import ServerSection, SourceFile, StartSection
from binlake.pump_service.feeder.snapshot.loadstate import build_load_facts, build_outdated_facts, read_load_record
from binlake.pump_service.feeder.snapshot.structures import describe_source
from binlake.pump_service.feeder.status import describe_position
from binlake.rules import Rules

log = structlog.get_logger()

_HEAD = re.compile(r"^CREATE TABLE `(?:[^`]|``)+`")
_SESSION = LoggedSession(sql_mode=0, time_zone="+00:00", explicit_defaults_for_timestamp=True)
_TRIES = 10  # times the definitions are read before giving up because DDL keeps running

FLAVOR = "flavor of "
"""Prefix of the fact, completed by the source's name, that the journal has before anything of it is prewritten."""

_ENDED = "ended load of "
_SHOWN = ("rows", "tables", "tables_done")


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


def read_schema_files(dump: DumpFolder) -> list[LoggedStatement]:
    """The statements of a dump's schema files, databases first. Raises ConfigError for a damaged file."""
    files = [*(("", file) for file in dump.databases.values()), *((db, file) for (db, _), file in dump.tables.items())]
    return [LoggedStatement(db, text, _SESSION) for db, file in files for text in read_dump_statements(file)]


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


def list_known_sources(journal: FeederJournal) -> frozenset[str]:
    """Every source for which this journal may have prewritten something."""
    return frozenset(journal.read_facts_with_prefix(FLAVOR)) | frozenset(journal.read_positions())


def list_removed_sources(journal: FeederJournal, named: Collection[str]) -> list[str]:
    """The known sources that are not among `named`, the configured ones."""
    return sorted(list_known_sources(journal).difference(named))


def roll_back_removed_loads(journal: FeederJournal, named: Collection[str]) -> None:
    """Roll back the unfinished loads of removed sources, durably and once; call it before the publisher tells the
    pumps what was left open."""
    for source in list_removed_sources(journal, named):
        load = read_load_record(journal, source)
        if load.get("state") != "loading":
            log.info("source_not_configured", source=source, has_place=source in journal.read_positions())
            continue
        shown = {name: load[name] for name in _SHOWN if name in load}
        facts = build_load_facts(source, {}) | build_outdated_facts(journal, source)
        count = journal.roll_back_load(source, {_ENDED + source: json.dumps(shown), **facts})
        log.warning(
            "load_of_removed_source_rolled_back", source=source, transactions=count, **shown,
            reason="it is not in the configuration; it is loaded again if it is configured again",
        )  # fmt: skip


def describe_removed(journal: FeederJournal, named: Collection[str]) -> list[dict[str, Any]]:
    """The removed sources for the page `/feeder`: positions and loads; state `rolled back`: rolled back by removal."""
    positions, ended = journal.read_positions(), journal.read_facts_with_prefix(_ENDED)
    removed = []
    for source in list_removed_sources(journal, named):
        load = read_load_record(journal, source)
        if not load and source in ended:
            load = {"state": "rolled back", **json.loads(ended[source])}
        description = {"source": source, "state": "removed", **describe_position(positions.get(source))}
        removed.append(description | ({"load": load} if load else {}))
    return removed
