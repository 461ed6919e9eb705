"""The current definitions of a source's tables as its server describes them, and whether a snapshot can read them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from pymysql import err
from pymysql.constants import ER

from binlake.errors import SourceRefused
from binlake.mysqlbinlog.definitions.descriptions import (
    SESSION,
    DatabaseDescription,
    describe_all,
    mask_four_byte_characters,
    strip_auto_increment,
    write_bytes_in_hex,
)
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.server import Link, ask, ask_by_name, derive_flavor
from binlake.statements.literal import quote_qualified_name

LOCK_WAIT_S = 10
"""Seconds to wait for a lock on a table: then the load, or the check, says that it waits (the servers' own limits are a
day and a year)."""
_CONSISTENT = frozenset({"INNODB", "ROCKSDB"})
"""Engines whose tables can be read in a consistent snapshot."""


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
