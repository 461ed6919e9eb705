"""A connection to the target accepts the source's rows unchanged, and does not read certificates each time."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, table
from support.windows import Window, apply

from binlake.common.sqllink import SqlLink
from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, TargetBusy, TargetRefused, TargetUnavailable
from binlake.rows.schema import mysqltypes as t
from binlake.target import TargetSession, expect_tables
from binlake.target.session.failures import translate_error

pytestmark = pytest.mark.mariadb


def test_connections_share_one_tls_context(target: TargetSection, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise each would read all system certificates: 22 ms of CPU
    made: list[int] = []
    make = ssl.create_default_context
    monkeypatch.setattr(SqlLink, "_context", None)
    monkeypatch.setattr(ssl, "create_default_context", lambda **places: made.append(1) or make(**places))
    for _ in range(3):
        session = TargetSession(target)
        assert session.fetch_rows("SELECT 1") == [(1,)]
        session.close()
    assert made == [1]


@pytest.fixture
def session(target: TargetSection) -> Iterator[TargetSession]:
    with closing(TargetSession(target)) as opened:
        yield opened


def test_foreign_keys_neither_block_nor_cascade(server: MariaDb, session: TargetSession) -> None:
    # rows come in any order within a phase; REPLACE deletes first, which would cascade
    execute(
        server,
        "CREATE TABLE app.parent (id BIGINT PRIMARY KEY, v INT)",
        "CREATE TABLE app.child (id BIGINT PRIMARY KEY, parent BIGINT,"
        " FOREIGN KEY (parent) REFERENCES app.parent (id) ON DELETE CASCADE)",
    )
    session.execute("REPLACE INTO app.child VALUES (1, 7)")
    for v in (1, 2):
        session.execute(f"REPLACE INTO app.parent VALUES (7, {v})")
    assert rows(server, "SELECT * FROM app.child") == [(1, 7)]


def test_source_id_0_is_kept(server: MariaDb, session: TargetSession) -> None:
    execute(server, "CREATE TABLE app.numbered (id BIGINT PRIMARY KEY AUTO_INCREMENT)")
    session.execute("REPLACE INTO app.numbered VALUES (0)")
    assert rows(server, "SELECT id FROM app.numbered") == [(0,)]


@pytest.mark.parametrize("day", ["2021-02-31", "0000-00-00", "2021-00-10"])
def test_invalid_calendar_day_is_accepted(server: MariaDb, session: TargetSession, day: str) -> None:
    execute(server, "CREATE TABLE app.dated (d DATE)")
    session.execute(f"INSERT INTO app.dated VALUES ('{day}')")
    assert rows(server, "SELECT CAST(d AS CHAR) FROM app.dated") == [(day,)]


def test_too_long_value_is_refused_and_never_truncated(server: MariaDb, session: TargetSession) -> None:  # S0-72
    with pytest.raises(TargetRefused, match="too long"):
        session.execute(f"INSERT INTO app.t VALUES (1, '{'x' * 21}')")
    assert rows(server, "SELECT COUNT(*) FROM app.t") == [(0,)]


@pytest.mark.servers("mysql")
def test_keyless_table_stays_keyless_where_the_server_requires_keys(server: MariaDb, target: TargetSection) -> None:
    # with a generated primary key, the table would differ from the source's
    wanted = ("sql_require_primary_key", "sql_generate_invisible_primary_key")
    execute(server, *[f"SET GLOBAL {name} = ON" for name in wanted])
    try:
        keyless = table("made", col("line", t.VARCHAR, flen=40), db="app")
        window = Window(0, 100).ddl(
            50, "CREATE TABLE made (line VARCHAR(40))", [("app", "made")], expect_tables([keyless], "mysql")
        )
        assert apply(target, window).ddls == 1
    finally:
        execute(server, *[f"SET GLOBAL {name} = OFF" for name in wanted])
    assert rows(server, "SHOW COLUMNS FROM app.made") == [("line", "varchar(40)", "YES", "", None, "")]


@pytest.mark.servers("mysql")
def test_password_is_verified_by_mysqls_plugin(server: MariaDb, target: TargetSection) -> None:
    execute(
        server,
        "DROP USER IF EXISTS 'narrow'@'%'",
        "CREATE USER 'narrow'@'%' IDENTIFIED WITH caching_sha2_password BY 'secret'",
    )
    narrow = target.model_copy(update={"user": "narrow", "password": "secret"})
    # Without TLS the password is first encrypted with the server's public key.
    for _ in range(2):
        with closing(TargetSession(narrow)) as session:
            assert session.fetch_rows("SHOW STATUS LIKE 'Ssl_cipher'") == [("Ssl_cipher", "")]
    with pytest.raises(TargetRefused, match="the target refuses the login"):
        TargetSession(narrow.model_copy(update={"password": "wrong"}))


@pytest.mark.parametrize(
    ("code", "kind"), [(1213, TargetBusy), (3101, TargetBusy), (3032, TargetUnavailable), (3024, TargetRefused)]
)
def test_error_number_decides_whether_to_retry(code: int, kind: type[BinlakeError]) -> None:
    found = translate_error(pymysql.err.OperationalError(code, "said"), "db:3306", "COMMIT")
    assert type(found) is kind
