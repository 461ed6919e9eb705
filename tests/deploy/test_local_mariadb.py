"""The private MariaDB keeps what was committed through any end, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pymysql
import pytest

from deploy.local.mariadb import MariaDb
from deploy.local.process import ProcessError

pytestmark = pytest.mark.mariadb


def _names(server: MariaDb) -> list[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'kept%'")
        return [name for (name,) in cursor.fetchall()]


def test_it_comes_back_with_its_data_on_its_port() -> None:
    with MariaDb() as server:
        port, folder = server.port, server.folder
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


def test_its_options_reach_the_server_and_a_long_folder_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    with MariaDb(folder, options=("--general-log=1", f"--general-log-file={tmp_path / 'general.log'}")) as server:
        server.connect().cursor().execute("SELECT 'seen by the general log'")
        assert "seen by the general log" in (tmp_path / "general.log").read_text()
    assert folder.exists()
    assert not server.socket.exists()


def test_an_option_it_does_not_know_is_told(tmp_path: Path) -> None:
    server = MariaDb(tmp_path, options=("--no-such-option",))
    with pytest.raises(ProcessError, match="no-such-option"):
        server.start()
    server.stop()
