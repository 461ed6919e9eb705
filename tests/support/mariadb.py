"""The tests' MariaDB and MySQL: the demo's classes, plus short helpers for tests."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.memory_disk import memory_disk

from binlake.common.sql import Dialect
from binlake.target.session.session import TargetSession
from deploy.local.mariadb import MariaDb
from deploy.local.mysql import MySql
from deploy.setup.common import LOCAL, hold_install_lock, stage_folder

__all__ = [
    "MariaDb",
    "MySql",
    "dialect_of",
    "empty_database",
    "execute",
    "mariadb_in_memory",
    "mysql_in_memory",
    "rows",
]

# Free space needed for one server's files; several workers have two servers each.
_ENOUGH = 2 << 30
# Otherwise each CREATE and DROP also writes rows of statistics: a sixth of its CPU.
_OPTIONS = ("--innodb-stats-persistent=OFF",)


@contextlib.contextmanager
def mariadb_in_memory(options: tuple[str, ...] = ()) -> Iterator[MariaDb]:
    """A server for a session, on a memory disk if there is room: file syncs would be a third of the tests' cost."""
    with _folder(MariaDb) as folder, MariaDb(folder, options=(*_OPTIONS, *options)) as server:
        yield server


@contextlib.contextmanager
def mysql_in_memory(options: tuple[str, ...] = ()) -> Iterator[MySql]:
    """A MySQL for a session, also on a memory disk."""
    with _folder(MySql) as folder, MySql(folder, options=(*_OPTIONS, *options)) as server:
        yield server


@contextlib.contextmanager
def _folder(kind: type[MariaDb]) -> Iterator[Path]:
    """A folder on the memory disk whose data folder is initialised already."""
    with tempfile.TemporaryDirectory(prefix=f"binlake-{kind.name}-", dir=memory_disk(_ENOUGH)) as name:
        folder = Path(name)
        # The file names the server to its replicas and clients: each server writes its own.
        shutil.copytree(_initialised_data(kind), folder / "data", ignore=shutil.ignore_patterns("auto.cnf"))
        yield folder


def _initialised_data(kind: type[MariaDb]) -> Path:
    """The data folder of a new server of this version; it stays below `.local/`: making one takes up to 3 s of CPU."""
    with tempfile.TemporaryDirectory() as scratch:
        server = kind(Path(scratch))
        target = LOCAL / "data-folders" / hashlib.sha256(server.version.encode()).hexdigest()[:16]
        with hold_install_lock(f"data-folder-{kind.name}"):
            if not target.exists():
                server.initialise()
                with stage_folder(target) as tree:
                    shutil.copytree(server.data_folder, tree, dirs_exist_ok=True)
    return target


def rows(server: MariaDb, query: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query, in a new connection."""
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(query, tuple(arguments) or None)
            return list(cursor.fetchall())
    finally:
        connection.close()


def dialect_of(session: TargetSession) -> Dialect:
    """The dialect of a session's server."""
    return "mariadb" if "MariaDB" in session.fetch_value("SELECT VERSION()") else "mysql"


@contextlib.contextmanager
def empty_database(server: MariaDb, name: str) -> Iterator[MariaDb]:
    """`server` with a new database `name`, which is dropped afterwards."""
    execute(server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    yield server
    execute(server, f"DROP DATABASE {name}")


def execute(server: MariaDb, *statements: str) -> None:
    """Run statements in order, each committed at once."""
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()
