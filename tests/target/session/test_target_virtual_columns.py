"""A virtual column over values that do not fit it: stored by a lenient source, and then also by the strict target.

Each case is written by a lenient session to one table and by the target's session to another, on both servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from support.mariadb import MariaDb, dialect_of, execute, rows
from support.tabledefs import col, primary, table
from support.windows import target_of

from binlake.changes.net import RowEvent
from binlake.changes.ordered import ChangeKeys, Merger, OrderedChange
from binlake.changes.ordered.forms import RowForms
from binlake.errors import TargetRefused
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements import BatchLimits, TableStatements, build_images_from_rows
from binlake.target import TargetSession

pytestmark = pytest.mark.mariadb

COLUMNS = "id INT PRIMARY KEY, s VARCHAR(20), i INT, d DATE, p VARCHAR(3)"
NAMES = ("id", "s", "i", "d", "p")
VALUES: list[tuple[str | None, ...]] = [
    ("1", "abc", "7", "2020-01-02", "x"), ("2", "12", "-300", None, "y"), ("3", "12:30:00", "2147483647", None, None),
    ("4", None, None, "0000-00-00", "z"), ("5", "2020-13-40", "0", "2020-02-31", ""),
    ("6", "a long text", "99", None, "q"),
    *((str(n), "no number", "5", None, None) for n in range(10, 200)),
]  # fmt: skip
EXPRESSIONS = [
    ("INT", "s"), ("INT UNSIGNED", "i - 10"), ("TINYINT", "i + 200"), ("BIGINT", "s + i"), ("DOUBLE", "s * 2"),
    ("VARCHAR(2)", "s"), ("VARCHAR(3)", "concat(s, i)"), ("DECIMAL(3,2)", "i * 100"), ("DATE", "s"), ("DATETIME", "s"),
    ("INT", "CAST(s AS UNSIGNED)"), ("INT", "i / 0"), ("INT", "year(s)"), ("ENUM('a', 'b')", "s"), ("YEAR", "i"),
    ("INT", "s > 5"), ("INT", "length(s)"),
]  # fmt: skip


def definition(name: str, expression: str) -> TableDef:
    generated = col("v", t.LONG, generated_expr_string=expression)
    plain = (col("id", not_null=True), col("s", t.VARCHAR, flen=20), col("i"), col("d", t.DATE))
    return table(name, *plain, col("p", t.VARCHAR, flen=3), generated, keys=(primary("id"),), db="virt")


@pytest.fixture
def session(server: MariaDb) -> Iterator[TargetSession]:
    execute(server, "CREATE DATABASE IF NOT EXISTS virt")
    found = TargetSession(target_of(server))
    yield found
    found.close()
    execute(server, "DROP DATABASE virt")


def build_tables(server: MariaDb, kind: str, expression: str, more: str = "") -> list[tuple[object, ...]]:
    """Create the table of the source and that of the target; return what the source shows."""
    for name in ("theirs", "ours"):
        execute(server, f"CREATE TABLE virt.{name} ({COLUMNS}, v {kind} AS ({expression}) VIRTUAL{more})")
    literals = ", ".join("(" + ", ".join("NULL" if v is None else f"'{v}'" for v in row) + ")" for row in VALUES)
    execute(
        server, "SET sql_mode = 'ALLOW_INVALID_DATES'", f"INSERT INTO virt.theirs (id, s, i, d, p) VALUES {literals}"
    )
    return shown(server, "theirs")


def shown(server: MariaDb, name: str) -> list[tuple[object, ...]]:
    return rows(server, f"SELECT id, s, i, d + 0, p, v FROM virt.{name} ORDER BY id")


def images(values: Sequence[tuple[str | None, ...]] = VALUES) -> dict[str, object]:
    return build_images_from_rows([dict(zip(NAMES, row, strict=True)) for row in values], list(NAMES))


def write(session: TargetSession, expression: str, *, plain: bool = False) -> None:
    statements = TableStatements(definition("ours", expression), 0, dialect=dialect_of(session), plain=plain)
    for batch in statements.render_writes(images()):
        session.begin()
        session.execute(batch.sql[0])
        session.commit()


@pytest.mark.parametrize(("kind", "expression"), EXPRESSIONS, ids=[f"{k} {e}" for k, e in EXPRESSIONS])
def test_target_shows_what_a_lenient_source_shows(
    server: MariaDb, session: TargetSession, kind: str, expression: str
) -> None:
    wanted = build_tables(server, kind, expression)
    for plain in (False, True, False):
        write(session, expression, plain=plain)
    assert shown(server, "ours") == wanted


@pytest.mark.parametrize(("kind", "expression"), [("INT", "s"), ("VARCHAR(2)", "s"), ("TINYINT", "i + 200")])
def test_an_index_has_the_values_of_a_lenient_source(
    server: MariaDb, session: TargetSession, kind: str, expression: str
) -> None:
    wanted = build_tables(server, kind, expression, ", KEY k (v)")
    write(session, expression)
    assert shown(server, "ours") == wanted
    for name in ("theirs", "ours"):
        assert len(rows(server, f"SELECT id FROM virt.{name} FORCE INDEX (k) WHERE v IS NOT NULL")) == sum(
            row[5] is not None for row in wanted
        )


@pytest.mark.parametrize("more", ["", ", KEY k (v)"], ids=["", "index"])
@pytest.mark.parametrize(
    ("expression", "last"),
    [("s", 0), ("CAST(s AS UNSIGNED)", 0), ("i / 0", None), ("s + i", -300), ("year(s)", None)],
)
def test_mode_ordered_writes_updates_and_deletes_such_rows(
    server: MariaDb, session: TargetSession, more: str, expression: str, last: int | None
) -> None:
    """Also where a function of the virtual column has the error, which names no column."""
    build_tables(server, "INT", expression, more)
    of = definition("ours", expression)
    forms, keys = RowForms(of, dialect_of(session)), ChangeKeys(of, dialect_of(session))
    images_of = (VALUES[1], ("2", "abc", "-300", None, "y"), ("2", "a WHERE b", "-300", None, "z'\\"))
    first, second, third = (dict(zip(NAMES, row, strict=True)) for row in images_of)
    events = [RowEvent(1, 0, 0, "insert", None, first), RowEvent(2, 0, 0, "update", first, second),
              RowEvent(3, 0, 0, "update", second, third), RowEvent(4, 0, 0, "delete", third, None)]  # fmt: skip
    changes = [OrderedChange(forms, event, keys.list_keys(event), safe=False) for event in events]
    for change in changes:
        for statement in Merger(False, BatchLimits()).render_statements([change]):
            session.begin()
            assert session.execute(statement.text) == 1
            session.commit()
        if change is changes[2]:
            assert shown(server, "ours") == [(2, "a WHERE b", -300, None, "z'\\", last)]
    assert shown(server, "ours") == []


def test_an_update_whose_condition_has_a_warning_is_refused(server: MariaDb, session: TargetSession) -> None:
    build_tables(server, "INT", "CAST(s AS UNSIGNED)")
    session.begin()
    session.execute("INSERT INTO `virt`.`ours` (`id`, `s`) VALUES (1, '5')")
    with pytest.raises(TargetRefused):
        session.execute("UPDATE `virt`.`ours` SET `s` = 'x' WHERE `id` = '1x' LIMIT 1")
    session.rollback()


@pytest.mark.parametrize("where", [0, 80])
def test_a_value_that_other_columns_cannot_hold_is_refused(server: MariaDb, session: TargetSession, where: int) -> None:
    """Also among more rows with warnings than a MariaDB lists by itself."""
    build_tables(server, "INT", "s")
    values = list(VALUES)
    values[where] = (values[where][0], values[where][1], "1", None, "for column 'v' at row 1")
    statements = TableStatements(definition("ours", "s"), 0, dialect=dialect_of(session))
    batch = next(statements.render_writes(images(values)))
    assert batch.rows > where
    session.begin()
    session.execute("INSERT INTO virt.ours (id) VALUES (1000)")
    with pytest.raises(TargetRefused):
        session.execute(batch.sql[0])
    assert session.fetch_column("SELECT id FROM virt.ours") == [1000]
    session.rollback()
    assert "STRICT_ALL_TABLES" in session.fetch_value("SELECT @@sql_mode")


def test_outside_a_transaction_a_refusal_stays_one(server: MariaDb, session: TargetSession) -> None:
    build_tables(server, "INT", "s")
    execute(server, "SET sql_mode = ''", "INSERT INTO virt.ours (id, s) VALUES (1, 'abc')")
    with pytest.raises(TargetRefused):
        session.execute("REPLACE INTO `virt`.`ours` (`id`,`s`) VALUES (1,'abc')")
