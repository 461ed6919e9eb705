"""The current definitions of a source's tables as its server describes them, and whether their rows can be loaded.

A table is refused before a row of it is read, not after a full load has copied every row into pumps: for an engine
without snapshots, and for collations for which the servers that the rows go to have none that calls the same texts
equal, as far as the feeder knows where the rows go (`target-families` in feeder.toml).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from pymysql import err
from pymysql.constants import ER

from binlake.common.sql import Dialect
from binlake.dialect import has_target_collation
from binlake.errors import SourceRefused
from binlake.mysqlbinlog.definitions.descriptions import (
    SESSION,
    DatabaseDescription,
    TableDescription,
    describe_all,
    mask_four_byte_characters,
    strip_auto_increment,
    write_bytes_in_hex,
)
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.server import Link, ask, ask_by_name, derive_flavor
from binlake.pump_service.feeder.settings import SourceFile
from binlake.statements.literal import quote_qualified_name

LOCK_WAIT_S = 10
"""Seconds to wait for a lock on a table: then the load, or the check, says that it waits (the servers' own limits are a
day and a year)."""

_CONSISTENT = frozenset({"INNODB", "ROCKSDB"})
"""Engines whose tables can be read in a consistent snapshot."""

COLLATION_REMEDY = (
    "change the collation at the source (for example to utf8mb4_bin), leave the table out (`ignore-tables`, or"
    " `snapshot.block-allow-list` if no replication has it), or correct `target-families` in feeder.toml"
)


def describe_source(link: Link) -> list[DatabaseDescription]:
    """All user databases with their base tables, without those of trackers. Raises pymysql's errors.

    If two calls return the same, no DDL ran in between: what was read between them has these definitions.
    """

    query = partial(ask_by_name, link)
    for statement in (*SESSION, f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}"):
        query(statement)
    return describe_all(query, derive_flavor(link))


def estimate_rows(link: Link, tables: Iterable[Name]) -> dict[Name, int]:
    """The server's row estimate for each table. Raises SourceRefused for a table whose engine has no snapshots."""
    query = "SELECT table_schema, table_name, engine, table_rows FROM information_schema.tables"
    known = {(row[0], row[1]): (str(row[2]), int(row[3] or 0)) for row in ask(link, query)}
    guesses: dict[Name, int] = {}
    for name in tables:
        engine, guesses[name] = known.get(name, ("InnoDB", 0))
        if engine.upper() not in _CONSISTENT:
            raise SourceRefused(
                "a table's engine has no consistent snapshot",
                where={"table": ".".join(name), "engine": engine},
                hint="ALTER TABLE ... ENGINE = InnoDB, or exclude the table",
            )
    return guesses


def count_moves(link: Link) -> tuple[int, ...]:
    """Number of statements the server has run that may give a table's name the rows of another table.

    RENAME and EXCHANGE PARTITION keep definitions as they are, and a snapshot shows under a name the rows of the table
    that currently has it. () = the server does not report them.
    """
    counted = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Com_alter_table', 'Com_rename_table')"
    return tuple(int(row[1]) for row in sorted(ask(link, counted)))


def read_create_text(link: Link, name: Name) -> str | None:
    """`TableDescription.create` of a table, with four-byte characters masked; None if there is no such table."""
    try:
        shown = str(ask(link, f"SHOW CREATE TABLE {quote_qualified_name(*name)}")[0][1])
        return mask_four_byte_characters(strip_auto_increment(write_bytes_in_hex(shown)))
    except err.ProgrammingError as error:
        if error.args[0] in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
            return None
        raise


def list_lacking(table: TableDescription, families: Sequence[Dialect]) -> list[str]:
    """`collation (families that lack it)` for each such collation of `table`, by name."""
    names = {table.collate, *(column.collate for column in table.columns)}
    lacking = {
        name: [family for family in families if not has_target_collation(name, family)] for name in names if name
    }
    return [f"{name} ({', '.join(of)})" for name, of in sorted(lacking.items()) if of]


def require_target_collations(
    source: SourceFile, databases: Iterable[DatabaseDescription], families: Sequence[Dialect]
) -> None:
    """Raises SourceRefused for a table whose rows would be loaded, and which a server of `families` could not have."""
    found = list(_find_lacking(source, databases, families))
    if found:
        raise SourceRefused(
            "the load has not begun: targets have no collation that calls the same texts equal",
            where={"tables": "; ".join(found[:5]), "number_of_tables": len(found)},
            hint=COLLATION_REMEDY,
        )


def _find_lacking(
    source: SourceFile, databases: Iterable[DatabaseDescription], families: Sequence[Dialect]
) -> Iterator[str]:
    for database in databases:
        for table in database.tables:
            names = list_lacking(table, families) if source.snapshot.loads(table.db, table.name) else []
            if names:
                yield f"{table.db}.{table.name}: {', '.join(names)}"
