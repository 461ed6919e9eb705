"""A session at a server, and queries on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pymysql.connections import Connection

Link: TypeAlias = "Connection[Any]"

Name = tuple[str, str]
"""(database, table)."""


def ask(link: Link, query: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query. Raises pymysql's errors."""
    with link.cursor() as cursor:
        cursor.execute(query, tuple(arguments) or None)
        return list(cursor.fetchall())
