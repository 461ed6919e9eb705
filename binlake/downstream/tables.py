"""Binlake's own tables on the target: created when a window first needs them, never read before they exist."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

import sql
from binlake.config.model import Target
from binlake.downstream.connection import execute, query


def quoted(name: str) -> str:
    """`name` as an SQL identifier."""
    return f"`{name.replace('`', '``')}`"


def own(target: Target, table: str) -> str:
    """The qualified name of one of our tables."""
    return f"{quoted(target.checkpoint_schema)}.{table}"


def create_tables(connection: Connection[Any], target: Target) -> None:
    """Make the checkpoint schema and its tables where they are missing. Reads only when they are all there."""
    if tables_exist(connection, target):
        return
    schema = quoted(target.checkpoint_schema)
    execute(connection, f"CREATE DATABASE IF NOT EXISTS {schema}")
    for table in sql.TABLES:
        execute(connection, sql.statement(table).replace("{schema}", schema))


def tables_exist(connection: Connection[Any], target: Target) -> bool:
    """True when every table of ours is there."""
    return existing(connection, target).issuperset(sql.TABLES)


def existing(connection: Connection[Any], target: Target) -> frozenset[str]:
    """Names of the tables in the checkpoint schema."""
    rows = query(
        connection,
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s",
        (target.checkpoint_schema,),
    )
    return frozenset(str(name) for (name,) in rows)
