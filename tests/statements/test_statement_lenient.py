"""The error value of an ENUM, which a strict session refuses, reaches the target; other statements stay strict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.mariadb import MariaDb, dialect_of, execute
from support.tabledefs import col, primary, table
from support.windows import target_of

from binlake.changes.net import RowEvent
from binlake.changes.ordered import ChangeKeys, Merger, OrderedChange
from binlake.changes.ordered.forms import RowForms
from binlake.errors import TargetRefused
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements import BatchLimits, TableStatements, build_images_from_rows
from binlake.statements.batch import parse_statement_table
from binlake.statements.render import render_lenient
from binlake.target import TargetSession

pytestmark = pytest.mark.mariadb

E = col("e", t.ENUM, elems=("a", "b"))
KEYED = table("odd", col("id", not_null=True), E, col("v", t.VARCHAR, flen=3), keys=(primary("id"),), db="app")
KEYLESS = table("odd", E, col("v", t.VARCHAR, flen=3), db="app")


@pytest.fixture
def session(server: MariaDb) -> Iterator[TargetSession]:
    execute(server, "CREATE DATABASE IF NOT EXISTS app", "DROP TABLE IF EXISTS app.odd")
    found = TargetSession(target_of(server))
    yield found
    found.close()
    execute(server, "DROP TABLE IF EXISTS app.odd")


def rows(of: TableDef, *values: tuple[str | None, ...]) -> dict[str, object]:
    names = [column.name for column in of.columns]
    return build_images_from_rows([dict(zip(names, row, strict=True)) for row in values], names)


def test_rows_of_a_table_with_a_key(session: TargetSession) -> None:
    session.execute("CREATE TABLE app.odd (id INT PRIMARY KEY, e ENUM('a', 'b'), v VARCHAR(3))")
    images = rows(KEYED, ("1", "", "x"), ("2", "a", "y"), ("3", None, "z"))
    for plain in (False, True, False):
        for batch in TableStatements(KEYED, 0, dialect=dialect_of(session), plain=plain).render_writes(images):
            session.execute(batch.sql[0])
            assert session.fetch_rows(batch.verify_sql) == [(3,)]
    assert session.fetch_rows("SELECT id, e + 0 FROM app.odd ORDER BY id") == [(1, 0.0), (2, 1.0), (3, None)]
    assert (
        "sql_mode"
        not in next(
            TableStatements(KEYED, 0, dialect=dialect_of(session)).render_writes(rows(KEYED, ("2", "b", "y")))
        ).sql[0]
    )
    [long] = TableStatements(KEYED, 0, dialect=dialect_of(session)).render_writes(rows(KEYED, ("4", "a", "too long")))
    with pytest.raises(TargetRefused):
        session.execute(long.sql[0])


def test_rows_of_a_table_without_a_key(session: TargetSession) -> None:
    session.execute("CREATE TABLE app.odd (e ENUM('a', 'b'), v VARCHAR(3))")
    images = rows(KEYLESS, ("", "x"), ("a", "x"))
    for batch in TableStatements(KEYLESS, 0, dialect=dialect_of(session)).render_inserts(images, [2, 1]):
        assert session.execute(batch.sql[0]) == 3
    assert session.fetch_rows("SELECT e + 0 FROM app.odd ORDER BY 1") == [(0.0,), (0.0,), (1.0,)]
    for batch in TableStatements(KEYLESS, 0, dialect=dialect_of(session)).render_image_deletes(images, [1, 1]):
        assert [session.execute(sql) for sql in batch.sql] == [1, 1]
    assert session.fetch_rows("SELECT e + 0 FROM app.odd") == [(0.0,)]


def test_mysql_and_tidb_use_a_hint() -> None:
    [batch] = TableStatements(KEYED, 0, dialect="mysql").render_writes(rows(KEYED, ("1", "", "x")))
    assert batch.sql[0].startswith("REPLACE /*+ SET_VAR(sql_mode = 'NO_AUTO_VALUE_ON_ZERO")


def test_empty_element_is_not_an_error_value() -> None:
    named = table("odd", col("id", not_null=True), col("e", t.ENUM, elems=("a", "")), keys=(primary("id"),))
    [batch] = TableStatements(named, 0).render_writes(rows(named, ("1", "")))
    assert batch.sql[0].startswith("REPLACE INTO")


@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_mode_ordered_continues_at_error_values(
    session: TargetSession, multiple: bool, safe: bool
) -> None:  # issue 13.13
    session.execute("CREATE TABLE app.odd (id INT PRIMARY KEY, e ENUM('a', 'b'), v VARCHAR(3))")
    keyed, changed = (RowForms(KEYED, dialect_of(session)), ChangeKeys(KEYED, dialect_of(session))), []
    ops = [(None, ("1", "", "x")), (None, ("2", "", "y")), (None, ("3", "a", "z")),
           (("3", "a", "z"), ("3", "", "z")), (("1", "", "x"), ("1", "b", "x")), (("2", "", "y"), ("9", "", "y")),
           (("3", "", "z"), None)]  # fmt: skip
    for number, (before, after) in enumerate(ops, 1):
        op = "insert" if before is None else "delete" if after is None else "update"
        pair = [image and dict(zip(("id", "e", "v"), image, strict=True)) for image in (before, after)]
        event = RowEvent(number, 0, 0, op, *pair)
        changed.append(OrderedChange(keyed[0], event, keyed[1].list_keys(event), safe))
    statements = Merger(multiple, BatchLimits()).render_statements(changed)
    for statement in statements:
        assert parse_statement_table(statement.text) == ("app", "odd")
        session.execute(statement.text)
    assert session.fetch_rows("SELECT id, e + 0 FROM app.odd ORDER BY id") == [(1, 2.0), (9, 0.0)]
    # A row that would be cut must fail, even next to a row that a strict session refuses.
    long = [(None, ("5", "", "x")), (None, ("6", "a", "too long"))]
    events = [RowEvent(20 + n, 0, 0, "insert", None, dict(zip(("id", "e", "v"), row, strict=True)))  # type: ignore[arg-type]
              for n, (_, row) in enumerate(long)]  # fmt: skip
    texts = [s.text for s in Merger(multiple, BatchLimits()).render_statements(
        [OrderedChange(keyed[0], event, keyed[1].list_keys(event), safe) for event in events])]  # fmt: skip
    assert ["sql_mode" in text for text in texts] == [True, False]
    with pytest.raises(TargetRefused):
        session.execute(texts[1])


def test_the_table_of_a_lenient_statement_is_reported() -> None:
    for dialect in ("mariadb", "mysql", "tidb"):
        for sql in ("INSERT INTO `a`.`b` (`x`)", "REPLACE INTO `a`.`b` (`x`)", "UPDATE `a`.`b` SET `x` = 1"):
            assert parse_statement_table(render_lenient(sql, dialect)) == ("a", "b")
