"""A MODIFY COLUMN leaves at the target what TiDB leaves: recorded values pass a real server's ALTER (R-29)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.children import wait_for_exit
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, primary, table
from support.windows import Window, apply, apply_in_child, at, signal_me

from binlake.config.servers import TargetSection
from binlake.dialect import DdlText, find_target_collation, map_ddl
from binlake.errors import TargetRefused
from binlake.rows.codec.datum import as_float32
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide
from binlake.statements.literal import choose_literal_kind, format_value_literal
from binlake.target import TargetSession
from binlake.target.ddl.execution import execute_ddl
from binlake.target.definitions.definitions import expect_after_ddl

pytestmark = [pytest.mark.mariadb, pytest.mark.servers("mariadb")]

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).resolve().parents[2] / "fixtures" / "casts.jsonl").read_text().splitlines()
]


def of_type(name: str, kind: dict[str, Any]) -> dict[str, Any]:
    raw = col(name, kind["Tp"])
    return {**raw, "type": {**raw["type"], **kind, "Elems": kind.get("Elems")}}


def define_table(*columns: dict[str, Any]) -> TableDef:
    return table("q", col("id", not_null=True), *columns, keys=(primary("id"),), db="app")


def type_sql(column: ColumnInfo) -> str:
    text = column.type_text
    if column.elems or (column.tp in t.STRINGS and not column.is_binary):
        return f"{text} CHARACTER SET {column.charset} COLLATE {find_target_collation(column.collate, 'mariadb')}"
    return f"{text} NULL DEFAULT NULL" if column.tp == t.TIMESTAMP else text


def list_statements(specs: str, before: TableDef, after: TableDef, session: SourceSession) -> tuple[str, ...]:
    sides = DdlSide((), (before,)), DdlSide((), (after,), session)
    return map_ddl(DdlText(7, "app", "q", f"ALTER TABLE `q` {specs}", *sides), "mariadb").sql


@pytest.fixture
def session(target: TargetSection) -> Iterator[TargetSession]:
    found = TargetSession(target)
    found.execute("USE app")
    yield found
    found.close()


def fill(session: TargetSession, of: ColumnInfo, values: list[str]) -> None:
    session.execute(f"CREATE OR REPLACE TABLE q (id INT PRIMARY KEY, v {type_sql(of)}, w INT DEFAULT 1, KEY by_v (w))")
    literals = [format_value_literal(text, choose_literal_kind(of)) for text in values]
    rows = ", ".join(f"({n}, {text})" for n, text in enumerate(literals))
    session.execute(f"SET STATEMENT sql_mode = 'ALLOW_INVALID_DATES' FOR INSERT INTO q (id, v) VALUES {rows}")


def as_text(column: ColumnInfo) -> str:
    if column.tp == t.BIT:
        return f"LPAD(HEX(v), {(column.flen + 7) // 8 * 2}, '0')"
    if column.is_binary:
        return "HEX(v)"
    return "v + 0e0" if column.tp in (t.FLOAT, t.DOUBLE) else "CAST(v AS CHAR)"


def is_equal(column: ColumnInfo, found: object, text: str) -> bool:
    if column.tp == t.JSON:
        return bool(json.loads(str(found)) == json.loads(text))
    if column.tp in (t.FLOAT, t.DOUBLE):
        return float(str(found)) == (as_float32(text) if column.tp == t.FLOAT else float(text))
    return (found.decode() if isinstance(found, bytes) else str(found)) == text


def test_alter_leaves_the_values_that_the_source_recorded(session: TargetSession) -> None:
    #
    assert not [wrong for case in RECORDED for wrong in find_wrong_values(session, case)]
    assert session.fetch_rows("SELECT @@time_zone, LOCATE('STRICT_ALL_TABLES', @@sql_mode) > 0") == [("+00:00", 1)]


def find_wrong_values(session: TargetSession, case: dict[str, Any]) -> list[Any]:
    """The case's values that an ALTER converts to something other than what was recorded."""
    more = (col("w"),)
    before, after = define_table(of_type("v", case["source"]), *more), define_table(of_type("v", case["target"]), *more)
    old, new = before.columns[1], after.columns[1]
    fill(session, old, [text for text, _ in case["values"]])
    spec = f"MODIFY COLUMN `v` {type_sql(new)}"
    execute_ddl(session, list_statements(spec, before, after, SourceSession(case["zone"], case.get("day", ""))))
    found = session.fetch_rows(f"SELECT {as_text(new)} FROM q ORDER BY id")
    pairs = zip(case["values"], found, strict=True)
    wrong = [(old.type_text, new.type_text, *pair, got) for pair, (got,) in pairs if not is_equal(new, got, pair[1])]
    names = session.fetch_rows(
        "SELECT GROUP_CONCAT(column_name ORDER BY ordinal_position) FROM information_schema.columns"
        " WHERE table_name = 'q' AND table_schema = 'app'"
    )
    return wrong if names == [("id,v,w",)] else [*wrong, names]


FLOAT, TEXT = {"Tp": t.FLOAT}, {"Tp": t.VARCHAR, "Flen": 60, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
FLOATS = {"16777216": "16777216", "1e15": "1000000000000000", "-1.5e-7": "-0.00000015", "123456.79": "123456.79"}


def convert_float_to_text() -> tuple[TableDef, TableDef, tuple[str, ...]]:
    """A conversion of a column that has a key, next to a column with ON UPDATE: the key stays, the column is
    untouched.
    """
    stamp = of_type("at", {"Tp": t.TIMESTAMP, "Flag": t.FLAG_ON_UPDATE_NOW})
    by_v = {**primary("v"), "idx_name": {"O": "by_v", "L": "by_v"}, "is_primary": False}
    sides = [
        table("q", col("id", not_null=True), of_type("v", kind), stamp, keys=(primary("id"), by_v), db="app")
        for kind in (FLOAT, TEXT)
    ]
    return sides[0], sides[1], list_statements("MODIFY COLUMN `v` VARCHAR(60)", *sides, SourceSession())


def build_floats(server: MariaDb) -> None:
    values = ", ".join(f"({n}, {text}e0, '2020-01-01')" for n, text in enumerate(f.replace("e", "e") for f in FLOATS))
    execute(
        server,
        "DROP TABLE IF EXISTS app.q",
        "CREATE TABLE app.q (id INT PRIMARY KEY, v FLOAT, at TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP,"
        " UNIQUE KEY by_v (v))",
        f"INSERT INTO app.q VALUES {values.replace('e15e0', 'e15').replace('e-7e0', 'e-7')}",
    )


@pytest.mark.parametrize("statements", range(6))
def test_interrupted_conversion_is_started_again(
    server: MariaDb, target: TargetSection, session: TargetSession, statements: int
) -> None:
    # the first `statements` + 1 statements of the DDL had run when the process died
    build_floats(server)
    before, after, sql = convert_float_to_text()
    expected = expect_after_ddl(DdlSide((), (before,)), DdlSide((), (after,)), "mariadb")
    window = Window(100, 300).ddl(200, sql, [("app", "q")], expected)
    pid = apply_in_child(target, window, at("intent", 1, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    for statement in sql[: statements + 1]:
        session.execute(statement)
    apply(target, window)
    assert [text for (text,) in rows(server, "SELECT v FROM app.q ORDER BY id")] == list(FLOATS.values())
    assert rows(server, "SELECT DISTINCT CAST(at AS CHAR) FROM app.q") == [("2020-01-01 00:00:00",)]
    assert rows(server, "SHOW COLUMNS FROM app.q LIKE '%%binlake%%'") == []
    assert [row[2] for row in rows(server, "SHOW INDEX FROM app.q")] == ["PRIMARY", "by_v"]


def test_refused_conversion_leaves_the_session_unchanged(server: MariaDb, session: TargetSession) -> None:
    build_floats(server)
    _, _, sql = convert_float_to_text()
    lacking = [text.replace("DROP COLUMN `v`", "DROP COLUMN `v`, ENGINE = nothing") for text in sql]
    with pytest.raises(TargetRefused):
        execute_ddl(session, lacking)
    assert session.fetch_rows("SELECT @@time_zone, LOCATE('STRICT_ALL_TABLES', @@sql_mode) > 0") == [("+00:00", 1)]


PLACES = [
    ("MODIFY `v` INT, ADD COLUMN `Fresh` INT AFTER `id`", ("id", "Fresh", "v", "w", "last")),
    ("MODIFY `v` INT, ADD COLUMN `Fresh` INT FIRST", ("Fresh", "id", "v", "w", "last")),
    ("ADD COLUMN `Fresh` INT AFTER `v`, MODIFY `v` INT", ("id", "v", "Fresh", "w", "last")),
    ("CHANGE `v` `Now` INT, MODIFY `last` INT AFTER `id`", ("id", "last", "Now", "w")),
    ("MODIFY `v` INT, RENAME COLUMN `id` TO `Key`", ("Key", "v", "w", "last")),
    ("MODIFY `v` INT, MODIFY `w` INT", ("id", "v", "w", "last")),
    ("MODIFY `v` INT AFTER `w`, MODIFY `w` INT", ("id", "w", "v", "last")),
    ("MODIFY `v` INT FIRST, DROP COLUMN `w`", ("v", "id", "last")),
]


@pytest.mark.parametrize(("specs", "names"), PLACES)
def test_converted_column_keeps_the_sources_position(
    session: TargetSession, specs: str, names: tuple[str, ...]
) -> None:
    # the other specs of the ALTER add, drop, rename and move columns next to it
    kinds = {"id": {"Tp": t.LONG}, "v": TEXT, "w": TEXT, "last": {"Tp": t.LONG}}
    before = table("q", *(of_type(name, kind) for name, kind in kinds.items()), db="app")
    kept = {"w": {"Tp": t.LONG} if "`w` INT" in specs else TEXT}
    after = table("q", *(of_type(name, kept.get(name, {"Tp": t.LONG})) for name in names), db="app")
    session.execute("CREATE OR REPLACE TABLE q (id INT, v VARCHAR(60), w VARCHAR(60), last INT)")
    session.execute("INSERT INTO q VALUES (1, '12.6', '1e2', 4)")
    assert execute_ddl(session, list_statements(specs, before, after, SourceSession())) == []
    found = session.fetch_rows("SELECT column_name FROM information_schema.columns WHERE table_schema = 'app'"
                               " AND table_name = 'q' ORDER BY ordinal_position")  # fmt: skip
    assert tuple(name for (name,) in found) == names
    was = {"Now": "v", "Key": "id"}
    values = {"id": 1, "v": 13, "w": 100 if "`w` INT" in specs else "1e2", "last": 4}
    assert session.fetch_rows("SELECT * FROM q") == [tuple(values.get(was.get(name, name)) for name in names)]
