"""Exactly once needs transactions: tables of engines without them are neither created nor written (invariant 9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, primary, table
from support.windows import Window, apply

from binlake.common.sections import LoopbackSection
from binlake.config.servers import TargetSection
from binlake.dialect import DdlText, map_ddl
from binlake.errors import Drift, TargetRefused
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.target.apply.preflight import run_preflight
from binlake.target.claim.writers import LoopbackMarks
from binlake.target.definitions.definitions import expect_tables
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb

T = table("t", col("id", t.LONGLONG, not_null=True), col("v", t.VARCHAR, flen=20), keys=(primary("id"),), db="app")


@pytest.fixture
def myisam_server(server: MariaDb) -> Iterator[MariaDb]:
    """The session's server with MyISAM as the default engine of CREATE TABLE."""
    execute(server, "SET GLOBAL default_storage_engine = MyISAM")
    yield server
    execute(server, "SET GLOBAL default_storage_engine = InnoDB", "DROP DATABASE IF EXISTS retl")


def engines(server: MariaDb, schema: str) -> set[str]:
    found = rows(server, "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", (schema,))
    return {engine for (engine,) in found}


def test_binlakes_tables_are_transactional_whatever_the_default_engine(
    myisam_server: MariaDb, target: TargetSection
) -> None:
    apply(target, Window(0, 100).log("once"))
    with closing(TargetSession(target)) as session:
        LoopbackMarks(LoopbackSection.model_validate({"channel-id": 1}), "shop").create_table(session)
    assert engines(myisam_server, "tidb_binlog") == {"InnoDB"}
    assert engines(myisam_server, "retl") == {"InnoDB"}


def test_table_created_by_a_ddl_is_transactional(myisam_server: MariaDb, target: TargetSection) -> None:
    execute(myisam_server, "DROP TABLE app.t, app.log")
    create = "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(20))"
    apply(target, Window(0, 100).ddl(50, create, [("app", "t")], expect_tables([T], target.db_type)))
    assert engines(myisam_server, "app") == {"InnoDB"}


@pytest.mark.servers("mariadb")
def test_aria_table_is_refused(server: MariaDb, target: TargetSection) -> None:
    check_refused(server, target, "Aria")


@pytest.mark.parametrize("engine", ["MyISAM", "MEMORY"])
def test_target_table_without_transactions_is_refused(server: MariaDb, target: TargetSection, engine: str) -> None:
    check_refused(server, target, engine)


def check_refused(server: MariaDb, target: TargetSection, engine: str) -> None:
    execute(server, f"ALTER TABLE app.t ENGINE = {engine}")
    with closing(TargetSession(target)) as session:
        [report] = run_preflight(session, target, [T])
    said = f"its engine {engine} has no transactions: a repetition would double rows or lose them"
    assert (report.verdict, report.refusals, report.ways[0]) == (
        "refused",
        (said,),
        "alter the target's table to match",
    )
    found = Window(0, 100).put((1, "a")).into(target, ("app", "t"))
    with pytest.raises(Drift, match=f"app.t: its engine {engine} has no transactions"):
        apply(target, found)
    assert rows(server, "SELECT * FROM app.t") == []
    # The hint's command works.
    execute(server, "ALTER TABLE app.t ENGINE = InnoDB")
    apply(target, found)
    assert rows(server, "SELECT * FROM app.t") == [(1, "a")]


@pytest.mark.parametrize("name", ["binlake_ledger", "checkpoint"])
def test_binlakes_own_table_without_transactions_is_refused(server: MariaDb, target: TargetSection, name: str) -> None:
    # An older version created them with the server's default engine.
    apply(target, Window(0, 100))
    execute(server, f"ALTER TABLE tidb_binlog.{name} ENGINE = MyISAM")
    with pytest.raises(TargetRefused, match="MyISAM, which has no transactions") as stopped:
        apply(target, Window(100, 200))
    change = stopped.value.hint.removeprefix("while nothing is applied: ")
    assert name in change
    execute(server, change)
    assert apply(target, Window(100, 200)).state == "applied"


@pytest.mark.parametrize(
    ("source", "shown", "difference"),
    [
        (("FLOAT", 7, 2), "FLOAT(7,2)", None),
        (("FLOAT", 7, 2), "FLOAT", None),
        (("FLOAT", 7, 2), "FLOAT(7,3)", "column v is float(7,3), not float(7,2)"),
        (("FLOAT", 7, 2), "DOUBLE", "column v is double, not float(7,2)"),
        (("FLOAT", 12, -1), "FLOAT(7,2)", "column v is float(7,2), not float"),
        (("FLOAT", 12, -1), "FLOAT", None),
        (("DOUBLE", 9, 3), "DOUBLE(9,3)", None),
        (("DOUBLE", 22, -1), "DOUBLE(22,1)", "column v is double(22,1), not double"),
    ],
    ids=[
        "same scale",
        "no bounds: what TiDB's becomes",
        "other scale",
        "other type",
        "scale added",
        "no scale",
        "same double",
        "scale added to double",
    ],
)
def test_float_is_compared_after_rounding(
    server: MariaDb, target: TargetSection, source: tuple[str, int, int], shown: str, difference: str | None
) -> None:
    kind, flen, decimal = source
    execute(server, f"CREATE TABLE app.f (id BIGINT PRIMARY KEY, v {shown})")
    value = col("v", getattr(t, kind), flen=flen, decimal=decimal)
    definition = table("f", col("id", t.LONGLONG, not_null=True), value, keys=(primary("id"),), db="app")
    with closing(TargetSession(target)) as session:
        [report] = run_preflight(session, target, [definition])
    assert report.refusals == (() if difference is None else (difference,))


def test_a_float_of_tidb_beyond_its_bounds_is_stored(server: MariaDb, target: TargetSection) -> None:
    """TiDB keeps -99999999.99 of a FLOAT(10,2) as -1e8, which is out of range for such a column of the target."""
    value = col("g", t.FLOAT, flen=10, decimal=2)
    definition = table("f", col("id", t.LONGLONG, not_null=True), value, keys=(primary("id"),), db="app")
    text = "CREATE TABLE `f` (`id` BIGINT NOT NULL PRIMARY KEY,`g` FLOAT(10,2))"
    ddl = DdlText(1, "app", "f", text, DdlSide((), ()), DdlSide((), (definition,)))
    execute(server, *map_ddl(ddl, target.db_type).sql, "INSERT INTO app.f VALUES (1, -1e8)")
    with closing(TargetSession(target)) as session:
        [report] = run_preflight(session, target, [definition])
        assert session.fetch_rows("SELECT g = -1e8 FROM app.f") == [(1,)]
    assert report.refusals == ()
