"""A target that fails over to an older copy of itself, as a lagging replica or a logical dump would be."""

from __future__ import annotations

from dataclasses import dataclass

from support.mariadb import MariaDb, execute, rows

_SHADOW = "copy_of_"


@dataclass(frozen=True)
class TargetCopy:
    """The databases that existed when `take_copy` was called."""

    databases: tuple[str, ...]


def take_copy(server: MariaDb, *databases: str) -> TargetCopy:
    """Copy those of `databases` that exist, with their committed rows."""
    there = tuple(db for db in databases if rows(server, "SHOW DATABASES LIKE %s", (db,)))
    for db in there:
        _copy(server, db, _SHADOW + db)
    return TargetCopy(there)


def fail_over(server: MariaDb, copy: TargetCopy, *databases: str) -> None:
    """End every session and replace `databases` by the copy; each table is created anew."""
    server.end_sessions()
    for db in databases:
        if db in copy.databases:
            _copy(server, _SHADOW + db, db)
        else:
            execute(server, f"DROP DATABASE IF EXISTS {db}")


def drop_copies(server: MariaDb) -> None:
    """Drop the databases that `take_copy` made."""
    for (db,) in rows(server, "SHOW DATABASES LIKE %s", (_SHADOW.replace("_", "\\_") + "%",)):
        execute(server, f"DROP DATABASE {db}")


def _copy(server: MariaDb, source: str, into: str) -> None:
    [(collation,)] = rows(
        server, "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (source,)
    )
    execute(server, "SET foreign_key_checks = 0", f"DROP DATABASE IF EXISTS {into}")
    execute(server, f"CREATE DATABASE {into} COLLATE {collation}")
    for (table,) in rows(server, f"SHOW TABLES IN `{source}`"):
        stored = rows(
            server,
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
            " AND COALESCE(GENERATION_EXPRESSION, '') = '' ORDER BY ORDINAL_POSITION",
            (source, table),
        )
        names = ", ".join(f"`{name}`" for (name,) in stored)
        execute(
            server,
            f"CREATE TABLE `{into}`.`{table}` LIKE `{source}`.`{table}`",
            f"INSERT INTO `{into}`.`{table}` ({names}) SELECT {names} FROM `{source}`.`{table}`",
        )
