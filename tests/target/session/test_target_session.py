"""A connection to the target takes the source's rows as they are, and costs no reading of certificates."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, table
from support.windows import Window, apply

from binlake.base.sqllink import SqlLink
from binlake.config.model import Target
from binlake.errors import BinlakeError, TargetBusy, TargetRefused, TargetUnavailable
from binlake.rows.schema import mysqltypes as t
from binlake.target import Session, expect_tables
from binlake.target.session.failures import translate_error

pytestmark = pytest.mark.mariadb


def test_connections_share_one_context_for_tls(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each would read all certificates of the system: 22 ms of CPU
    made: list[int] = []
    make = ssl.create_default_context
    monkeypatch.setattr(SqlLink, "_context", None)
    monkeypatch.setattr(ssl, "create_default_context", lambda **places: made.append(1) or make(**places))
    for _ in range(3):
        session = Session(target)
        assert session.rows("SELECT 1") == [(1,)]
        session.close()
    assert made == [1]


@pytest.fixture
def session(target: Target) -> Iterator[Session]:
    with closing(Session(target)) as opened:
        yield opened


def test_a_row_waits_for_no_parent_and_a_replaced_parent_takes_no_child_with_it(
    server: MariaDb, session: Session
) -> None:
    # any order within a phase; REPLACE deletes first, which would cascade
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


def test_an_id_0_of_the_source_stays_0(server: MariaDb, session: Session) -> None:
    execute(server, "CREATE TABLE app.numbered (id BIGINT PRIMARY KEY AUTO_INCREMENT)")
    session.execute("REPLACE INTO app.numbered VALUES (0)")
    assert rows(server, "SELECT id FROM app.numbered") == [(0,)]


@pytest.mark.parametrize("day", ["2021-02-31", "0000-00-00", "2021-00-10"])
def test_a_day_that_is_in_no_calendar_is_taken(server: MariaDb, session: Session, day: str) -> None:
    execute(server, "CREATE TABLE app.dated (d DATE)")
    session.execute(f"INSERT INTO app.dated VALUES ('{day}')")
    assert rows(server, "SELECT CAST(d AS CHAR) FROM app.dated") == [(day,)]


def test_a_value_that_is_too_long_is_refused_and_never_cut(server: MariaDb, session: Session) -> None:  # S0-72
    with pytest.raises(TargetRefused, match="too long"):
        session.execute(f"INSERT INTO app.t VALUES (1, '{'x' * 21}')")
    assert rows(server, "SELECT COUNT(*) FROM app.t") == [(0,)]


@pytest.mark.servers("mysql")
def test_a_table_without_a_key_stays_one_where_the_server_wants_keys(server: MariaDb, target: Target) -> None:
    # a key of the target's own would not be the source's table
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
def test_a_password_is_asked_for_by_mysqls_own_way(server: MariaDb, target: Target) -> None:
    execute(
        server,
        "DROP USER IF EXISTS 'narrow'@'%'",
        "CREATE USER 'narrow'@'%' IDENTIFIED WITH caching_sha2_password BY 'secret'",
    )
    narrow = target.model_copy(update={"user": "narrow", "password": "secret"})
    # Without TLS it goes out under the server's own key the first time.
    for _ in range(2):
        with closing(Session(narrow)) as session:
            assert session.rows("SHOW STATUS LIKE 'Ssl_cipher'") == [("Ssl_cipher", "")]
    with pytest.raises(TargetRefused, match="the target refuses the login"):
        Session(narrow.model_copy(update={"password": "wrong"}))


@pytest.mark.parametrize(
    ("code", "kind"), [(1213, TargetBusy), (3101, TargetBusy), (3032, TargetUnavailable), (3024, TargetRefused)]
)
def test_what_a_server_says_decides_whether_to_try_again(code: int, kind: type[BinlakeError]) -> None:
    found = translate_error(pymysql.err.OperationalError(code, "said"), "db:3306", "COMMIT")
    assert type(found) is kind
