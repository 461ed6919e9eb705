"""The tests' MariaDB: the same class as the demo's, and helpers that read like the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy.local.mariadb import MariaDb

__all__ = ["MariaDb", "execute", "rows"]


def rows(server: MariaDb, query: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query, in a connection of its own."""
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(query, tuple(arguments) or None)
            return list(cursor.fetchall())
    finally:
        connection.close()


def execute(server: MariaDb, *statements: str) -> None:
    """Run statements one after the other, each committed at once."""
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()
