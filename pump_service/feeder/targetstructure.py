"""First definitions from the target's tables: for a source whose log is read from a place that nothing else describes.

Each table that the source has now and that the replication takes has the definition of the table at the target into
which it is routed, under its own name (data-migration-and-ticdc.md 1.10, S4-25).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from binlake.config import load_replication
from binlake.errors import SourceRefused
from binlake.mysqlbinlog.definitions.described import DatabaseDescription, TableDescription
from binlake.rules import Rules
from pump_service.feeder.server import connect
from pump_service.feeder.settings import Server, SourceFile
from pump_service.feeder.snapshot.structures import describe_source

_HEAD = re.compile(r"^CREATE TABLE `(?:[^`]|``)+`")


def describe_by_target(source: SourceFile, now: Iterable[DatabaseDescription], file: Path) -> list[DatabaseDescription]:
    """`now`, the source's databases, with the definitions of the target of the replication in `file`.

    Raises ConfigError, SourceUnavailable, and SourceRefused naming a table that the target does not have.
    """
    replication = load_replication(file)
    target = replication.sql_target(hint="`start.target` names a replication with a section [target]")
    rules = Rules.of(replication)
    server = Server(host=target.host, port=target.port, user=target.user, password=target.password)
    with closing(connect(server)) as link:
        there = {(db.name, table.name): table for db in describe_source(link) for table in db.tables}
    databases = []
    for database in now:
        shown = source.database_name(database.name)
        tables = [
            _named(_at_target(there, rules, shown, own.name), own) if rules.keeps(shown, own.name) else own
            for own in database.tables
        ]
        databases.append(replace(database, tables=tuple(tables)))
    return databases


def _at_target(there: dict[tuple[str, str], TableDescription], rules: Rules, db: str, table: str) -> TableDescription:
    name = rules.routes.table(db, table)
    if name not in there:
        raise SourceRefused(
            "the target does not have this table, whose definition is to be that of the source",
            where={"table": f"{db}.{table}", "target": ".".join(name)},
            hint="create it there as the source had it at that place, leave it out by the replication's filter, "
            "or use a dump (`definitions`)",
        )
    return there[name]


def _named(table: TableDescription, own: TableDescription) -> TableDescription:
    quoted = own.name.replace("`", "``")
    create = _HEAD.sub(lambda _: f"CREATE TABLE `{quoted}`", table.create, count=1)
    return replace(table, db=own.db, name=own.name, create=create)
