"""The tables of the feeder's journal, and what several of its durable steps do with those of a full load."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

TABLES = """
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch (
  first_start INTEGER PRIMARY KEY, count INTEGER NOT NULL, first_commit INTEGER NOT NULL, unsent TEXT);
CREATE INDEX IF NOT EXISTS batch_unsent ON batch (first_start) WHERE unsent IS NOT NULL;
CREATE TABLE IF NOT EXISTS place (
  source TEXT PRIMARY KEY, file TEXT NOT NULL, offset INTEGER NOT NULL, gtids TEXT NOT NULL,
  last_id TEXT NOT NULL, time_ms INTEGER NOT NULL, commit_ts INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS load_table (
  source TEXT, db TEXT, name TEXT, body TEXT NOT NULL, PRIMARY KEY (source, db, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS load_batch (
  first_start INTEGER PRIMARY KEY, source TEXT NOT NULL, db TEXT NOT NULL, name TEXT NOT NULL,
  snapshot INTEGER NOT NULL, count INTEGER NOT NULL, body TEXT NOT NULL);
"""


def put_load_tables(db: sqlite3.Connection, bodies: Iterable[tuple[tuple[str, str, str], str]]) -> None:
    """Record the state of each table's load, by (source, db, table)."""
    db.executemany("REPLACE INTO load_table VALUES (?, ?, ?, ?)", [(*table, body) for table, body in bodies])


def delete_load(db: sqlite3.Connection, source: str) -> None:
    """Delete what is recorded of the load of `source`."""
    for table in ("load_batch", "load_table"):
        db.execute(f"DELETE FROM {table} WHERE source = ?", (source,))
