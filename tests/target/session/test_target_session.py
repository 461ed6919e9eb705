"""A connection to the target takes the source's rows as they are, and costs no reading of certificates."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.mariadb import MariaDb, execute, rows

from binlake.config.model import Target
from binlake.errors import TargetRefused
from binlake.target import Session
from binlake.target.session.session import _Link

pytestmark = pytest.mark.mariadb


def test_connections_share_one_context_for_tls(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each would read all certificates of the system: 22 ms of CPU
    made: list[int] = []
    make = ssl.create_default_context
    monkeypatch.setattr(_Link, "_context", None)
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
