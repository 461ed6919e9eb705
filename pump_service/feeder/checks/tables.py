"""Checks of the tables: what the feeder cannot replicate, and what the log does not show."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from binlake.common.sql import Dialect
from binlake.errors import SchemaError
from binlake.mysqlbinlog.charsets import build_utf8_writer
from binlake.mysqlbinlog.definitions.descriptions import SYSTEM_DATABASES, TableDescription
from binlake.mysqlbinlog.definitions.tables import build_table_info
from binlake.pump_service.feeder.checks.servers import CheckFinding, judge
from binlake.pump_service.feeder.server import Link, ask
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.structures import COLLATION_REMEDY, describe_source, list_lacking

_SHOWN = 5
_FAMILIES: tuple[Dialect, ...] = get_args(Dialect)
_CASCADING = re.compile(r"^\s*(?:CONSTRAINT .*)?FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET)", re.MULTILINE)
"""A line of SHOW CREATE TABLE. (information_schema hides constraints from users who may only SELECT.)"""


@dataclass(frozen=True)
class TableFacts:
    """`engines` by table; `increment`: step and first value of AUTO_INCREMENT; `case`: lower_case_table_names."""

    tables: tuple[TableDescription, ...]
    engines: Mapping[str, str]
    increment: tuple[int, int]
    case: int


def read_table_facts(link: Link, source: SourceFile) -> TableFacts:
    """Read the facts of the server behind `link`, without what `source` ignores. Raises pymysql's errors."""
    own = ", ".join(f"'{name}'" for name in sorted(SYSTEM_DATABASES))
    engines = ask(
        link,
        "SELECT table_schema, table_name, engine FROM information_schema.tables"
        f" WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ({own})",
    )
    step, first, case = ask(
        link, "SELECT @@GLOBAL.auto_increment_increment, @@GLOBAL.auto_increment_offset, @@lower_case_table_names"
    )[0]
    return TableFacts(
        tuple(
            table
            for database in describe_source(link)
            for table in database.tables
            if not source.ignores(database.name, table.name)
        ),
        {f"{db}.{table}": str(engine) for db, table, engine in engines if not source.ignores(db, table)},
        (int(step), int(first)),
        int(case),
    )


def check_tables(
    facts: TableFacts,
    *,
    with_snapshot: bool,
    families: Sequence[Dialect] = (),
    loads: Callable[[str, str], bool] = lambda _db, _table: True,
) -> list[CheckFinding]:
    """The checks of one source's tables.

    `families`: the kinds of servers that the rows go to; empty = not known. `loads`: whether a full load reads a table.
    """
    lacking = [
        f"{table.db}.{table.name}: {', '.join(names)}"
        for table in facts.tables
        if (names := list_lacking(table, families or _FAMILIES)) and loads(table.db, table.name)
    ]
    refused = [message for table in facts.tables if (message := _find_refusal(table))]
    cascading = [f"{table.db}.{table.name}" for table in facts.tables if _CASCADING.search(table.create)]
    keyless = [f"{table.db}.{table.name}" for table in facts.tables if not _has_key(table)]
    others = [f"{name} ({engine})" for name, engine in facts.engines.items() if engine.upper() != "INNODB"]
    return [
        judge(
            "definitions", not refused, _shorten_list(refused) or f"{len(facts.tables)} tables",
            "change the columns' types, or exclude the tables (`ignore-tables` of the source)",
        ),
        judge(
            "collations", not lacking, _shorten_list(lacking) or f"known to {', '.join(families or _FAMILIES)}",
            COLLATION_REMEDY if families
            else f"name your targets in `target-families` of feeder.toml; if one lacks it, {COLLATION_REMEDY}",
            "fail" if families and with_snapshot else "warn",
        ),
        judge(
            "foreign keys", not cascading, _shorten_list(cascading) or "none that cascades",
            "MariaDB, and MySQL before 9.6, do not log rows that a cascade changes: there the first change that may"
            " cascade stops the source. If the application always changes such rows itself before, set"
            ' unlogged-cascades = "none"; else replace the foreign keys by ones without CASCADE and SET NULL',
            "warn",
        ),
        judge(
            "keys", not keyless, _shorten_list(keyless) or "every table has a primary or unique key",
            "add a primary key: rows without one are identified by all their values, which is slow",
            "warn",
        ),
        judge(
            "engines", not others, _shorten_list(others) or "InnoDB",
            "changes to non-transactional tables may be partial, and a snapshot cannot read them: ALTER TABLE ..."
            " ENGINE = InnoDB",
            "fail" if with_snapshot else "warn",
        ),
    ]  # fmt: skip


def check_together(sources: Mapping[str, TableFacts], files: Sequence[SourceFile]) -> list[CheckFinding]:
    """Checks across the sources that go into one cluster; `sources` by name."""
    if len(sources) < 2:
        return []
    names = {file.name: file for file in files}
    by_name: dict[str, list[str]] = defaultdict(list)
    for source, facts in sources.items():
        for db in {table.db for table in facts.tables}:
            by_name[names[source].derive_database_name(db).lower()].append(f"{source}.{db}")
    clashes = [f"{name} ({', '.join(of)})" for name, of in sorted(by_name.items()) if len(of) > 1]
    return [
        judge(
            "databases of several sources", not clashes, _shorten_list(clashes) or "distinct",
            'rename-schema = "{source}_{schema}" makes their names distinct; routes can merge their tables again',
        ),
        *_check_shards(sources),
    ]  # fmt: skip


def _check_shards(sources: Mapping[str, TableFacts]) -> Iterable[CheckFinding]:
    """Tables of the same name at several sources, which merging into one table could mix up."""
    shards: dict[str, list[tuple[str, TableDescription]]] = defaultdict(list)
    for source, facts in sources.items():
        for table in facts.tables:
            shards[f"{table.db}.{table.name}".lower()].append((source, table))
    several = {name: each for name, each in shards.items() if len(each) > 1}
    keyless = [name for name, each in several.items() if not all(_has_key(table) for _, table in each)]
    yield judge(
        "keys of shards", not keyless, _shorten_list(keyless) or f"{len(several)} tables at several sources have keys",
        "add a primary key, or add a column with the source to it (extract-source): rows of two shards cannot be"
        " distinguished",
    )  # fmt: skip
    numbered = [name for name, each in several.items() if any(_is_numbered(table) for _, table in each)]
    ways = [facts.increment for facts in sources.values()]
    apart = len({first % step for step, first in ways}) == len(ways) and min(step for step, _ in ways) >= len(ways)
    yield judge(
        "AUTO_INCREMENT of shards", apart or not numbered,
        _shorten_list(numbered) or "no table at several sources has one",
        "two shards generate the same numbers: set auto_increment_increment to the number of shards and a different"
        " auto_increment_offset on each, or put a column with the source into the key (extract-source)",
        "warn",
    )  # fmt: skip
    different = [name for name, each in several.items() if len({_list_columns(table) for _, table in each}) > 1]
    yield judge(
        "definitions of shards", not different, _shorten_list(different) or "equal",
        "their columns differ; `shard-mode` decides how one target table takes them all",
        "warn",
    )  # fmt: skip


def _find_refusal(table: TableDescription) -> str:
    name = f"{table.db}.{table.name}"
    try:
        build_table_info(table, 1, table.name)
        for column in table.columns:
            build_utf8_writer(column.charset or "")
    except SchemaError as error:
        return f"{name}: {error.message}"
    return ""


def _has_key(table: TableDescription) -> bool:
    return any(row.unique for row in table.indexes)


def _is_numbered(table: TableDescription) -> bool:
    return any("auto_increment" in column.extra.lower() for column in table.columns)


def _list_columns(table: TableDescription) -> tuple[tuple[str, str], ...]:
    return tuple((column.name.lower(), column.type) for column in table.columns)


def _shorten_list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
