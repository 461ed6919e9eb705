"""Another writer at the target: it deletes, inserts or updates rows of a copy, whatever columns that has."""

from __future__ import annotations

from random import Random

from support.mariadb import MariaDb, rows

from binlake.statements.literal import quote_name, quote_qualified_name

_KINDS = ("deletes", "inserts", "updates")
FOREIGN_WRITES = tuple(f"another writer {kind} at the target" for kind in _KINDS)
_COLUMNS = (
    "SELECT column_name, data_type, column_key, is_nullable FROM information_schema.columns"
    " WHERE table_schema = %s AND table_name = %s AND extra NOT LIKE '%%GENERATED%%' ORDER BY ordinal_position"
)
_FAR = 1_000_000
"""Distance of a foreign row's id from those of the source."""


def write_foreign(server: MariaDb, name: tuple[str, str], draw: Random) -> str:
    """Change some rows of the table `name` in a drawn way; returns which of FOREIGN_WRITES, '' if nothing changed."""
    kind = draw.choice(_KINDS)
    statement = {"deletes": _delete, "inserts": _insert, "updates": _update}[kind](server, name, draw)
    if not statement:
        return ""
    with server.connect() as link, link.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        changed = cursor.execute(statement)
    return FOREIGN_WRITES[_KINDS.index(kind)] if changed else ""


def _delete(_server: MariaDb, name: tuple[str, str], draw: Random) -> str:
    return f"DELETE FROM {quote_qualified_name(*name)} LIMIT {draw.randint(1, 3)}"


def _insert(server: MariaDb, name: tuple[str, str], _draw: Random) -> str:
    """A row like one that exists: with another id, or the same again where there is no key."""
    columns = rows(server, _COLUMNS, name)
    if any(key for _, _, key, _ in columns) and not any(
        column == "id" and kind == "int" and key for column, kind, key, _ in columns
    ):
        return ""
    shown = [f"id + {_FAR}" if column == "id" and key else quote_name(column) for column, _, key, _ in columns]
    into = ", ".join(quote_name(column) for column, *_ in columns)
    table = quote_qualified_name(*name)
    return f"INSERT IGNORE INTO {table} ({into}) SELECT {', '.join(shown)} FROM {table} LIMIT 1"


def _update(server: MariaDb, name: tuple[str, str], draw: Random) -> str:
    """One column that is in no key becomes NULL."""
    free = [column for column, _, key, nullable in rows(server, _COLUMNS, name) if not key and nullable == "YES"]
    if not free:
        return ""
    column = quote_name(draw.choice(free))
    return f"UPDATE {quote_qualified_name(*name)} SET {column} = NULL WHERE {column} IS NOT NULL LIMIT 2"
