"""A fresh database `app` and no tables of ours before each test that asks for `target`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.mariadb import MariaDb, execute
from support.windows import end_children, target_of

from binlake.config.model import Target


@pytest.fixture
def target(mariadb: MariaDb) -> Iterator[Target]:
    """The session's server with app.t(id, v) and the keyless app.log(line), empty, and no checkpoint."""
    mariadb.end_sessions()
    execute(
        mariadb,
        "SET foreign_key_checks = 0",
        "DROP DATABASE IF EXISTS tidb_binlog",
        "DROP DATABASE IF EXISTS app",
        "CREATE DATABASE app CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE app.log (line VARCHAR(40))",
    )
    yield target_of(mariadb)
    end_children()
