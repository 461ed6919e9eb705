"""Values that a target cannot convert itself are converted by Binlake: on real servers, killed at each step (R-29)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.children import wait_for_exit
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import Json, col, key, primary, table
from support.windows import Window, apply, apply_in_child, at, signal_me

from binlake.common.sql import Dialect
from binlake.config.servers import TargetSection
from binlake.dialect import DdlText, map_ddl
from binlake.errors import TargetRefused
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide
from binlake.statements.ddlsteps import CastStep, RequireNoRows
from binlake.target import TargetSession
from binlake.target.ddl import execution
from binlake.target.ddl.execution import execute_ddl, run_cast_step
from binlake.target.definitions.definitions import expect_after_ddl

pytestmark = pytest.mark.mariadb

UTC = SourceSession("+00:00")
TEXT, JSON = col("v", t.VARCHAR, flen=60), col("v", t.JSON)


def list_statements(
    before: TableDef, after: TableDef, kind: str, dialect: Dialect, session: SourceSession = UTC
) -> tuple[str, ...]:
    sides = DdlSide((), (before,)), DdlSide((), (after,), session)
    return map_ddl(DdlText(7, "app", "q", f"ALTER TABLE `q` MODIFY COLUMN `v` {kind}", *sides), dialect).sql


@pytest.fixture
def session(target: TargetSection) -> Iterator[TargetSession]:
    found = TargetSession(target)
    found.execute("USE app")
    yield found
    found.close()


LATIN = {"charset": "latin1", "collate": "latin1_bin"}
K, N, B = (
    col("k", t.VARCHAR, flen=10, not_null=True, **LATIN),
    col("n", not_null=True),
    col("b", t.BIT, flen=64, not_null=True),
)
U = col("u", t.LONGLONG, unsigned=True, not_null=True)
SHAPES: dict[str, tuple[str, tuple[Json, ...], tuple[Json, ...]]] = {
    "one integer": ("n INT NOT NULL PRIMARY KEY", (N,), (primary("n"),)),
    "latin1 and integer": (
        "k VARCHAR(10) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL, n INT NOT NULL, PRIMARY KEY (k, n)",
        (K, N), (primary("k", "n"),),
    ),
    "bit and integer": ("b BIT(64) NOT NULL, n INT NOT NULL, PRIMARY KEY (b, n)", (B, N), (primary("b", "n"),)),
    "unique": ("u BIGINT UNSIGNED NOT NULL, n INT NOT NULL, UNIQUE KEY uk (u)", (U, N), (key("uk", "u"),)),
    "none": ("n INT NOT NULL", (N,), ()),
}  # fmt: skip
KEYS = {"k": ("'ö'", "'a'", "'ÿ'"), "n": ("1", "2", "3"), "b": ("0xFFFFFFFFFFFFFFFF", "0x01", "0x00"),
        "u": ("18446744073709551615", "0", "7")}  # fmt: skip
VALUES = {"'[1, 2.50]'": "[1, 2.5]", '\'{"b":1,"a":[]}\'': '{"a": [], "b": 1}', "NULL": None}


def build_table(server: MariaDb, shape: str) -> tuple[TableDef, TableDef]:
    text, columns, keys = SHAPES[shape]
    stamp = col("at", t.TIMESTAMP)
    stamp["type"]["Flag"] |= t.FLAG_ON_UPDATE_NOW
    lines = [
        ", ".join([*(KEYS[c["name"]["O"]][number] for c in columns), literal, "'2020-01-01'"])
        for number, literal in enumerate(VALUES)
    ]
    execute(
        server,
        f"CREATE TABLE app.q ({text}, v VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,"
        " at TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP)",
        *(f"INSERT INTO app.q ({', '.join(c['name']['O'] for c in columns)}, v, at) VALUES ({line})" for line in lines),
    )
    return table("q", *columns, TEXT, stamp, keys=keys, db="app"), table(
        "q", *columns, JSON, stamp, keys=keys, db="app"
    )


@pytest.mark.servers("mariadb")
@pytest.mark.parametrize("shape", SHAPES)
def test_text_becomes_the_document_that_tidb_stores(
    server: MariaDb, session: TargetSession, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MariaDB's own ALTER would keep `2.50`; every form of key finds its rows
    monkeypatch.setattr(execution, "_READ_ROWS", 2)
    before, after = build_table(server, shape)
    sql = list_statements(before, after, "JSON", "mariadb")
    assert execute_ddl(session, sql) == []
    assert [text for (text,) in rows(server, "SELECT v FROM app.q ORDER BY n")] == list(VALUES.values())
    assert rows(server, "SELECT DISTINCT CAST(at AS CHAR) FROM app.q") == [("2020-01-01 00:00:00",)]


@pytest.mark.servers("mariadb")
@pytest.mark.parametrize("statements", range(6))
def test_interrupted_conversion_by_values_continues(
    server: MariaDb, target: TargetSection, session: TargetSession, statements: int
) -> None:
    # the first `statements` had run when the process died; the last case dies between two batches
    before, after = build_table(server, "one integer")
    sql = list_statements(before, after, "JSON", "mariadb")
    expected = expect_after_ddl(DdlSide((), (before,)), DdlSide((), (after,)), "mariadb")
    window = Window(100, 300).ddl(200, sql, [("app", "q")], expected)
    pid = apply_in_child(target, window, at("intent", 1, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    at_step = next(n for n, text in enumerate(sql) if CastStep.find_in(text))
    for statement in sql[: min(statements, at_step)]:
        session.execute(statement)
    if statements > at_step:
        session.execute("UPDATE q SET _binlake_cast_2_2 = '[1, 2.5]', at = at WHERE n = 1")
    apply(target, window)
    assert [text for (text,) in rows(server, "SELECT v FROM app.q ORDER BY n")] == list(VALUES.values())
    assert rows(server, "SHOW COLUMNS FROM app.q LIKE '%%binlake%%'") == []
    assert rows(server, "SELECT DISTINCT CAST(at AS CHAR) FROM app.q") == [("2020-01-01 00:00:00",)]


@pytest.mark.servers("mariadb")
@pytest.mark.parametrize("by_values", [False, True], ids=["expression", "values"])
@pytest.mark.parametrize("statements", range(9))
def test_converted_primary_key_survives_a_death_after_each_statement(
    server: MariaDb, target: TargetSection, by_values: bool, statements: int
) -> None:
    # MySQL makes 13 of `12.6`, MariaDB's own ALTER 12. The old key finds every row until the last statement.
    source = SourceSession("+00:00", family="mysql", sql_mode=0 if by_values else 1 << 22)
    text = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
    execute(
        server,
        f"CREATE TABLE app.q (v {text}, w {text}, n INT NOT NULL, PRIMARY KEY (n, v), KEY i (v, w))",
        "INSERT INTO app.q VALUES ('12.6', 'a', 1), ('1e2', 'b', 1), ('-3', 'c', 2)",
    )
    other = col("w", t.VARCHAR, flen=20, not_null=True)
    keys = (primary("n", "v"), key("i", "v", "w", unique=False))
    before, after = (
        table("q", column, other, N, keys=keys, db="app")
        for column in (col("v", t.VARCHAR, flen=20, not_null=True), col("v", not_null=True))
    )
    sql = list_statements(before, after, "INT NOT NULL", "mariadb", source)
    assert by_values == any(CastStep.find_in(text) for text in sql)
    expected = expect_after_ddl(DdlSide((), (before,)), DdlSide((), (after,)), "mariadb")
    window = Window(100, 300).ddl(200, sql, [("app", "q")], expected)
    begun = TargetSession(target)
    try:
        # As the process that died did; its session ended with it. All but the last leave the old key.
        execute_ddl(begun, sql[: min(statements, len(sql) - 2)])
    finally:
        begun.close()
    apply(target, window)
    assert rows(server, "SELECT v, w, n FROM app.q ORDER BY v") == [(-3, "c", 2), (13, "a", 1), (100, "b", 1)]
    found = rows(
        server,
        "SELECT index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics"
        " WHERE table_schema = 'app' AND table_name = 'q' GROUP BY index_name ORDER BY index_name",
    )
    assert found == [("i", "v,w"), ("PRIMARY", "n,v")]
    assert rows(server, "SHOW COLUMNS FROM app.q LIKE '%%binlake%%'") == []


@pytest.mark.servers("mysql")
def test_single_key_is_converted_by_values_from_the_other_family(server: MariaDb, session: TargetSession) -> None:
    execute(
        server, "CREATE TABLE app.q (v VARCHAR(9) NOT NULL PRIMARY KEY)", "INSERT INTO app.q VALUES ('2001'), ('70')"
    )
    before, after = (
        table("q", column, keys=(primary("v"),), db="app")
        for column in (col("v", t.VARCHAR, flen=9, not_null=True), col("v", t.YEAR, flen=4, not_null=True))
    )
    source = SourceSession("+00:00", family="mariadb", sql_mode=1 << 21)
    sql = list_statements(before, after, "YEAR NOT NULL", "mysql", source)
    assert any(CastStep.find_in(text) for text in sql)
    assert execute_ddl(session, sql) == []
    assert rows(server, "SELECT v FROM app.q ORDER BY v") == [(1970,), (2001,)]
    assert len(rows(server, "SHOW INDEX FROM app.q WHERE Key_name = 'PRIMARY'")) == 1


def test_value_without_a_known_conversion_is_refused_and_leaves_the_table(
    server: MariaDb, target: TargetSection
) -> None:
    # and once it is mended at the target, the same window goes on
    before, _ = build_table(server, "one integer")
    source, target_column = (replace(column, tp=kind, flen=flen) for column, kind, flen in (
        (before.find_column("v"), t.VARCHAR, 60), (before.find_column("v"), t.YEAR, 4)))  # fmt: skip
    step = CastStep(
        "`q`", (before.columns[0],), source, target_column, "_binlake_cast_2_2", ("at",), UTC, target.db_type
    )
    shadow = "ALTER TABLE `q` ADD COLUMN `_binlake_cast_2_2` YEAR NULL DEFAULT NULL AFTER `v`"
    swap = "ALTER TABLE `q` DROP COLUMN `v`, CHANGE `_binlake_cast_2_2` `v` YEAR"
    made = table("q", N, col("v", t.YEAR), col("at", t.TIMESTAMP), keys=(primary("n"),), db="app")
    expected = expect_after_ddl(DdlSide((), (before,)), DdlSide((), (made,)), target.db_type)
    window = Window(100, 300).ddl(200, ("USE `app`", shadow, step.to_sql(), swap), [("app", "q")], expected)
    execute(
        server, "UPDATE app.q SET v = '9999', at = at WHERE n = 1", "UPDATE app.q SET v = '2020', at = at WHERE n > 1"
    )
    with pytest.raises(TargetRefused, match=r"a stored value cannot be converted .* out of range") as refused:
        apply(target, window)
    assert "9999" not in str(refused.value)
    assert rows(server, "SHOW COLUMNS FROM app.q LIKE '%%binlake%%'") == []
    execute(server, "UPDATE app.q SET v = '1999', at = at WHERE n = 1")
    apply(target, window)
    assert [str(year) for (year,) in rows(server, "SELECT v FROM app.q ORDER BY n")] == ["1999", "2020", "2020"]


def test_row_that_is_not_found_by_its_key_is_an_error(server: MariaDb, session: TargetSession) -> None:
    before, _ = build_table(server, "one integer")
    column = before.find_column("v")
    session.execute("ALTER TABLE q ADD COLUMN s VARCHAR(60)")
    assert column is not None
    wrong = replace(before.columns[0], tp=t.BIT, flen=8)
    step = CastStep("`q`", (wrong,), column, replace(column, flen=50), "s", (), UTC, server.name)
    session.execute("UPDATE q SET n = n + 1000")
    with pytest.raises(TargetRefused, match="are not found by their key"):
        run_cast_step(session, step)


LENIENT = SourceSession("+00:00", lenient=True)
SHORTER = [
    (TEXT, col("v", t.VARCHAR, flen=3), "VARCHAR(60)", "VARCHAR(3)", "'abcdef'", "abc"),
    (col("v"), col("v", t.TINY, unsigned=True), "INT", "TINYINT UNSIGNED", "300", 255),
    (col("v"), col("v", t.TINY, unsigned=True), "INT", "TINYINT UNSIGNED", "-1", 0),
    (col("v", t.LONGLONG, unsigned=True), col("v"), "BIGINT UNSIGNED", "INT", "18446744073709551615", 2147483647),
    (TEXT, col("v"), "VARCHAR(60)", "INT", "'zz'", 0),
]  # fmt: skip


@pytest.mark.parametrize(("former", "now", "old", "new", "given", "made"), SHORTER)
def test_lenient_session_of_the_source_is_lenient_at_the_target(
    server: MariaDb, session: TargetSession, former: Json, now: Json, old: str, new: str, given: str, made: object
) -> None:
    # recorded with sql_mode = '' at a live TiDB (capture live_cases, c_mm0 to c_mm5)
    execute(server, f"CREATE TABLE app.q (n INT PRIMARY KEY, v {old})", f"INSERT INTO app.q VALUES (1, {given})")
    before, after = (table("q", N, column, keys=(primary("n"),), db="app") for column in (former, now))
    assert execute_ddl(session, list_statements(before, after, new, server.name, LENIENT)) == []
    assert rows(server, "SELECT v FROM app.q") == [(made,)]
    assert session.fetch_value("SELECT LOCATE('STRICT_ALL_TABLES', @@sql_mode) > 0") == 1


def test_column_is_not_numbered_by_the_target(server: MariaDb, target: TargetSection) -> None:
    # the source numbered old rows in its own order, which no log has
    execute(server, "CREATE TABLE app.q (n INT)", "INSERT INTO app.q VALUES (7), (5)")
    number = col("id", t.LONGLONG, not_null=True)
    number["type"]["Flag"] |= t.FLAG_AUTO_INCREMENT
    before, after = table("q", N, db="app"), table("q", N, number, keys=(primary("id"),), db="app")
    source = replace(UTC, family="mysql", sql_mode=1 << 21)
    sides = DdlSide((), (before,)), DdlSide((), (after,), source)
    query = "ALTER TABLE `q` ADD COLUMN `id` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY"
    sql = map_ddl(DdlText(7, "app", "q", query, *sides), target.db_type).sql
    expected = expect_after_ddl(*sides, target.db_type)
    window = Window(100, 300).ddl(200, sql, [("app", "q")], expected)
    with pytest.raises(TargetRefused, match=r"numbered old rows in the new column id.*binlake table aside"):
        apply(target, window)
    assert rows(server, "SHOW COLUMNS FROM app.q LIKE 'id'") == []
    execute(server, "DELETE FROM app.q")
    apply(target, window)
    assert rows(server, "SHOW COLUMNS FROM app.q LIKE 'id'") != []


def test_server_refuses_the_text_of_a_step(server: MariaDb, session: TargetSession) -> None:
    # An executor that does not know steps stops, and loses no value.
    before, after = build_table(server, "one integer")
    column, document = before.find_column("v"), after.find_column("v")
    assert column is not None
    assert document is not None
    step = CastStep("`q`", (before.columns[0],), column, document, "s", (), UTC, server.name)
    for text in (step.to_sql(), RequireNoRows("`q`", "TRUE", "it's so").to_sql()):
        with pytest.raises(TargetRefused, match="syntax"):
            session.execute(text)
