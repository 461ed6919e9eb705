"""Which ALTERs of a DDL a table shows to have run, asked of the proof itself (the whole: test_half_run_ddl.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.mariadb import MariaDb, execute, rows

from binlake.config.servers import TargetSection
from binlake.statements.batch import Phase, StatementBatch
from binlake.target import TargetSession
from binlake.target.ddl.proof import StepProof

pytestmark = pytest.mark.mariadb

FIRST, SECOND = "ALTER TABLE `q` ADD COLUMN `a` INT", "ALTER TABLE `q` ADD COLUMN `b` INT"


def ddl(*sql: str, kind: Any = "ddl") -> StatementBatch:
    return StatementBatch(1, Phase.DDL, 0, "app", "", kind, sql, (-1,) * len(sql), "", 0, 0, "")


def prove(*sql: str, kind: Any = "ddl") -> StepProof | None:
    return StepProof.of("tidb_binlog", "orders", 7, ddl(*sql, kind=kind))


def required(*sql: str) -> StepProof:
    proof = prove(*sql)
    assert proof is not None
    return proof


@pytest.fixture
def session(server: MariaDb, target: TargetSection) -> Iterator[TargetSession]:
    made = (
        "CREATE DATABASE IF NOT EXISTS tidb_binlog",
        "CREATE DATABASE IF NOT EXISTS app",
        "DROP TABLE IF EXISTS app.q",
    )
    execute(server, *made, "CREATE TABLE app.q (id INT PRIMARY KEY)")
    with closing(TargetSession(target)) as session:
        session.execute("USE app")
        yield session
        required(FIRST, SECOND).remove(session)
    execute(server, "DROP TABLE IF EXISTS app.q")


def test_only_a_ddl_of_the_source_with_several_alters_of_one_table_has_a_proof() -> None:
    assert required(FIRST, SECOND).table == ("app", "q")
    assert prove(FIRST) is None
    assert prove(FIRST, SECOND, kind="replaced") is None
    assert prove(FIRST, SECOND.replace("`q`", "`r`")) is None


@pytest.mark.parametrize("done", [0, 1, 2])
def test_what_is_missing_begins_at_the_first_alter_that_did_not_run(
    server: MariaDb, session: TargetSession, done: int
) -> None:
    #
    proof = required(FIRST, SECOND)
    proof.make(session)
    for statement in (FIRST, SECOND)[:done]:
        session.execute(statement)
    for _ in range(2):  # the table of a trial may be left by a process that died
        assert proof.find_missing(session) == (FIRST, SECOND)[done:]
    session.execute("ALTER TABLE q ADD COLUMN c INT")
    assert proof.find_missing(session) is None
    execute(server, "DROP TABLE app.q")
    assert proof.find_missing(session) is None


def test_a_copy_that_was_left_is_made_anew(session: TargetSession) -> None:
    proof = required(FIRST, SECOND)
    proof.make(session)
    session.execute("ALTER TABLE q ADD COLUMN earlier INT")
    proof.make(session)
    assert proof.find_missing(session) == (FIRST, SECOND)
    proof.remove(session)
    assert proof.find_missing(session) is None


def test_a_trial_runs_in_the_sessions_of_the_ddl_and_leaves_none_of_their_settings(
    server: MariaDb, session: TargetSession
) -> None:
    mode, moment = "SET SESSION sql_mode = 'REAL_AS_FLOAT'", "SET SESSION timestamp = 5"
    proof = required(mode, moment, FIRST.replace("INT", "REAL"), SECOND, "SET SESSION timestamp = DEFAULT")
    proof.make(session)
    execute(server, FIRST.replace("`q`", "app.q").replace("INT", "FLOAT"))
    assert proof.find_missing(session) == (mode, moment, SECOND, "SET SESSION timestamp = DEFAULT")
    assert session.fetch_value("SELECT @@SESSION.timestamp > 1000") == 1
    assert rows(server, "SHOW TABLES FROM app LIKE 'q'") == [("q",)]
