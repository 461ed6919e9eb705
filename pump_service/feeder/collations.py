"""Collations of a source for which the servers that the rows go to have none that calls the same texts equal.

A window that meets such a table is refused, but that is after a full load has copied every row into pumps. So the load
refuses it before it reads a row, as far as the feeder knows where the rows go (`target-families` in feeder.toml).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from binlake.base.sql import Dialect
from binlake.dialect import has_target_collation
from binlake.errors import SourceRefused
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, TableDescription
from binlake.pump_service.feeder.settings import SourceFile

REMEDY = (
    "change the collation at the source (for example to utf8mb4_bin), leave the table out (`ignore-tables`, or"
    " `snapshot.block-allow-list` if no replication has it), or correct `target-families` in feeder.toml"
)


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
            hint=REMEDY,
        )


def _find_lacking(
    source: SourceFile, databases: Iterable[DatabaseDescription], families: Sequence[Dialect]
) -> Iterator[str]:
    for database in databases:
        for table in database.tables:
            names = list_lacking(table, families) if source.snapshot.loads(table.db, table.name) else []
            if names:
                yield f"{table.db}.{table.name}: {', '.join(names)}"
