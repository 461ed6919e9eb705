"""The private MariaDB and MySQL keep committed data however they end, and leave nothing behind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pymysql
import pytest
from support.mariadb import rows
from support.windows import target_of

from binlake.target import TargetSession
from deploy.local.mariadb import MariaDb
from deploy.local.mysql import MySql
from deploy.local.process import ProcessError

pytestmark = pytest.mark.mariadb


def _names(server: MariaDb) -> list[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'kept%'")
        return [name for (name,) in cursor.fetchall()]


@pytest.mark.parametrize("kind", [MariaDb, pytest.param(MySql, marks=pytest.mark.soak)])
def test_restarted_server_has_its_data_and_port(kind: type[MariaDb]) -> None:
    with kind() as server:
        port, folder = server.port, server.folder
        assert rows(server, "SELECT @@log_bin") == [(0,)]
        with closing(TargetSession(target_of(server))) as session:
            # MySQL creates a certificate itself.
            assert bool(session.fetch_rows("SHOW STATUS LIKE 'Ssl_cipher'")[0][1]) == (kind is MySql)
        server.connect().cursor().execute("CREATE DATABASE kept")
        server.restart()
        server.kill9()
        with pytest.raises(pymysql.err.OperationalError):
            server.connect()
        server.start()
        assert (server.port, _names(server)) == (port, ["kept"])
        left_open = server.connect(autocommit=False)
        left_open.cursor().execute("CREATE TABLE kept.t (a INT)")
        left_open.cursor().execute("INSERT INTO kept.t VALUES (1)")
        server.wipe()
        assert _names(server) == []
    assert not folder.exists()


def test_source_logs_rows_and_their_metadata(mariadb_source: MariaDb, mysql: MySql) -> None:
    variables = "@@log_bin, @@server_id, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata"
    assert rows(mariadb_source, f"SELECT {variables}") == [(1, 1, "ROW", "FULL", "FULL")]
    assert rows(mysql, f"SELECT {variables}, @@gtid_mode") == [(1, 2, "ROW", "FULL", "FULL", "ON")]


def test_options_reach_the_server_and_a_long_path_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    with MariaDb(folder, options=("--general-log=1", f"--general-log-file={tmp_path / 'general.log'}")) as server:
        server.connect().cursor().execute("SELECT 'seen by the general log'")
        assert "seen by the general log" in (tmp_path / "general.log").read_text()
    assert folder.exists()
    assert not server.socket.exists()


def test_unknown_option_is_reported(tmp_path: Path) -> None:
    server = MariaDb(tmp_path, options=("--no-such-option",))
    with pytest.raises(ProcessError, match="no-such-option"):
        server.start()
    server.stop()
