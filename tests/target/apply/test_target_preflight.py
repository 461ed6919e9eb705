"""Before any write, preflight names each difference with its table, its consequence, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.mariadb import MariaDb, dialect_of, execute, rows
from support.tabledefs import col, key, primary, table
from support.windows import Window, apply, target_of

from binlake.config.servers import TargetSection, TargetTable
from binlake.errors import Drift
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.target import expect_tables
from binlake.target.apply.preflight import TableReport, require_fit, run_preflight
from binlake.target.definitions.definitions import expect_after_ddl
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb


def source(name: str = "k") -> TableDef:
    return table(
        name, col("id", t.VARCHAR, flen=9, not_null=True), col("v", t.VARCHAR, flen=20), keys=(primary("id"),), db="app"
    )


@pytest.fixture
def session(target: TargetSection) -> Iterator[TargetSession]:
    opened = TargetSession(target)
    yield opened
    opened.close()


def report(session: TargetSession, create: str, *tables: TableDef, **config: Any) -> TableReport:
    """Create app.k by `create`, and return its report."""
    session.execute(f"CREATE TABLE app.k ({create})")
    target = TargetSection.model_validate({"db-type": dialect_of(session), **config})
    return run_preflight(session, target, tables or (source(),))[0]


PLAIN = "id VARCHAR(9) PRIMARY KEY, v VARCHAR(20)"


def options(**found: Any) -> dict[str, Any]:
    return {"tables": [{"db-name": "app", "tbl-name": "k", **found}]}


def test_equal_table_is_reported_as_alike(session: TargetSession) -> None:
    found = report(session, PLAIN)
    assert found == TableReport("app", "k", "alike")
    require_fit([found], {})


@pytest.mark.parametrize(
    ("create", "refusal", "way"),
    [
        # an additional unique key loses rows; a coarser collation makes two keys equal
        (f"{PLAIN}, UNIQUE (v)", "unique key (v) is the target's own", "alter the target"),
        (
            "id VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v VARCHAR(20)",
            "column id has collation utf8mb4_general_ci, not utf8mb4_bin",
            "alter the target",
        ),
        (
            "id VARCHAR(9), v VARCHAR(20), PRIMARY KEY (id(4))",
            "unique key (id(4)) is the target's own",
            "alter the target",
        ),
        ("id VARCHAR(9) PRIMARY KEY, v VARCHAR(20) NOT NULL", "column v is NOT NULL, unlike the source", "alter the"),
        (f"{PLAIN}, more INT", "column more is the target's own", "preserve = true"),
        ("id VARCHAR(9) PRIMARY KEY", "column v is missing: its values would be lost", "target.sync-mode = 2"),
    ],
)
def test_table_that_would_lose_rows_is_refused_with_remedies(
    session: TargetSession, create: str, refusal: str, way: str
) -> None:
    # R-13, S4-26, S4-46
    found = report(session, create)
    assert (found.verdict, found.refusals[0], way in found.ways[0]) == ("refused", refusal, True)
    assert "filter.ignore-table" in found.ways[-1]
    with pytest.raises(Drift, match=rf"app\.k: {refusal.split('(')[0]}.*preflight"):
        require_fit([found], {"window": "0-1"})


def test_table_with_preserve_lists_its_own_columns(session: TargetSession) -> None:
    found = report(session, f"{PLAIN}, Note INT DEFAULT 3", **options(preserve=True))
    assert (found.verdict, found.own, found.refusals, found.ways) == ("preserve", ("note",), (), ())
    require_fit([found], {})


def test_sync_mode_2_lists_left_out_columns(session: TargetSession) -> None:
    # tidb-binlog 5.10
    found = report(session, "id VARCHAR(9) PRIMARY KEY", **{"sync-mode": 2})
    assert (found.verdict, found.left_out) == ("partial", ("v",))


def test_difference_is_accepted_only_by_its_exact_text(session: TargetSession) -> None:
    words = "column v is varchar(40), not varchar(20)"
    create = "id VARCHAR(9) PRIMARY KEY, v VARCHAR(40)"
    found = report(session, create, **options(accept=[words]))
    assert (found.verdict, found.differences) == ("accepted", (words,))
    session.execute("ALTER TABLE app.k MODIFY v VARCHAR(30)")
    target = TargetSection.model_validate({"db-type": dialect_of(session), **options(accept=[words])})
    assert run_preflight(session, target, [source()])[0].refusals == ("column v is varchar(30), not varchar(20)",)


def test_mode_ordered_in_safe_mode_refuses_to_preserve_columns(session: TargetSession) -> None:
    found = report(session, f"{PLAIN}, note INT", mode="ordered", **options(preserve=True))
    assert found.refusals == (
        "mode ordered with safe-mode = always would erase the values of the target's own columns",
    )
    assert found.ways[0] == "target.mode = atomic, parallel or auto; or safe-mode = auto"


def test_triggers_and_cascades_are_warnings(session: TargetSession) -> None:
    # whether they fire is not reported by the server
    session.execute("CREATE TABLE app.k (id VARCHAR(9) PRIMARY KEY, v VARCHAR(20))")
    session.execute("CREATE TABLE app.child (k VARCHAR(9), CONSTRAINT c FOREIGN KEY (k) REFERENCES app.k (id)"
                    " ON DELETE CASCADE)")  # fmt: skip
    session.execute("CREATE TRIGGER app.told AFTER INSERT ON app.k FOR EACH ROW SET @told = 1")
    [found] = run_preflight(session, TargetSection(db_type=dialect_of(session)), [source()])
    assert found.verdict == "alike"
    assert [text.split(" fires")[0].split(" cascades")[0] for text in found.warnings] == [
        "trigger told (AFTER INSERT)", "foreign key c of child",
    ]  # fmt: skip


def test_missing_table_is_reported_and_refused_only_when_it_gets_rows(session: TargetSession) -> None:
    [found] = run_preflight(session, TargetSection(db_type=dialect_of(session)), [source("nowhere")])
    assert (found.verdict, found.refusals) == ("missing", ("the table is missing",))
    require_fit([found], {})


def test_views_are_ignored(session: TargetSession) -> None:
    view = table("shown", col("id"), keys=(), db="app", view={"view_select": "select 1"})
    assert run_preflight(session, TargetSection(db_type=dialect_of(session)), [view]) == []


def test_tables_of_a_ddl_are_checked_after_it(server: MariaDb, target: TargetSection) -> None:
    # R-13, S4-23: even a table that gets no rows
    keys = (key("i", "id", unique=False),)
    before = table("t", col("id", t.LONGLONG), col("v", t.VARCHAR, flen=20), keys=keys, db="app")
    after = table("t", col("id", t.LONGLONG, not_null=True), col("v", t.VARCHAR, flen=20), col("w"),
                  keys=(primary("id"),), db="app")  # fmt: skip
    expected = expect_after_ddl(DdlSide((), (before,)), DdlSide((), (after,)), "mariadb")
    execute(server, "ALTER TABLE app.t ADD UNIQUE (v)")
    window = Window(100, 300).ddl(200, "ALTER TABLE t ADD COLUMN w INT", [("app", "t")], expected)
    with pytest.raises(Drift, match=r"unique key \(v\) is the target's own"):
        apply(target, window)
    own = TargetTable(db_name="app", tbl_name="t", accept=("unique key (v) is the target's own",))
    apply(target_of(server, tables=(own,)), window)
    assert rows(server, "SELECT checkPoint LIKE '%%300%%' FROM tidb_binlog.checkpoint") == [(1,)]
    assert expect_tables([after], "mariadb").names == [("app", "t")]
