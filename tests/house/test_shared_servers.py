"""Databases that a module leaves on a server of the session are dropped before the next module."""

from __future__ import annotations

from support.mariadb import MariaDb, execute
from support.shared_servers import drop_databases


def test_what_a_module_leaves_is_dropped_even_if_a_session_uses_it(mariadb: MariaDb) -> None:
    execute(mariadb, "CREATE DATABASE `left`", "CREATE TABLE `left`.t (a INT) ENGINE = InnoDB")
    user = mariadb.connect(database="left", autocommit=False)
    with user.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (1)")  # in an open transaction, for which DROP would wait
    drop_databases()
    assert mariadb.list_databases() == []
