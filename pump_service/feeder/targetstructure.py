"""First definitions from the target's tables: for a start position whose definitions are known nowhere else.

Each current table of the source that the replication includes gets the definition of the target table into which it is
routed, under its own name (data-migration-and-ticdc.md 1.10, S4-25).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from binlake.config import load_replication
from binlake.errors import SourceRefused
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, TableDescription
from binlake.pump_service.feeder.server import connect
from binlake.pump_service.feeder.settings import ServerSection, SourceFile
from binlake.pump_service.feeder.snapshot.structures import describe_source
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
