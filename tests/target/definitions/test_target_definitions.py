"""What the target needs so that rows are safe in it, and how the target shows that a DDL has run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.mariadb import MariaDb, dialect_of, execute
from support.tabledefs import col, key, primary, table
from support.windows import target_of

from binlake.config.servers import TargetSection
from binlake.dialect import find_target_collation
from binlake.errors import Drift
from binlake.rows.schema import Action, DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.target.definitions.definitions import (
    ExpectedState,
    compare_definitions,
    digest_definitions,
    expect_after_ddl,
    expect_tables,
    read_create_statement,
    read_definitions,
    read_table_numbers,
    require_definitions,
)
from binlake.target.definitions.forms import normalize_type
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb

SOURCE = table(
    "t",
    col("Id", t.LONGLONG, not_null=True, unsigned=True, flen=20),
    col("v", t.VARCHAR, flen=20),
    col("ai", t.VARCHAR, flen=9, collate="utf8mb4_0900_ai_ci"),
    col("j", t.JSON),
    col("e", t.ENUM, elems=("a", "it's")),
    col("b", t.BLOB, charset="binary"),
    col("at", t.TIMESTAMP, decimal=3),
    col("g", generated_expr_string="`j` is null", generated_stored=True, not_null=True),
    keys=(primary("Id"), key("u", ("v", 4), "e"), key("i", "at", unique=False)),
)
CREATE = (
    "CREATE TABLE d.t (id BIGINT UNSIGNED PRIMARY KEY, v VARCHAR(20),"
    " ai VARCHAR(9) COLLATE {ai_ci}, j JSON, e ENUM('a','it''s'), b BLOB,"
    " at TIMESTAMP(3) NULL, g INT AS (j IS NULL) STORED, UNIQUE u (v(4), e), INDEX i (at))"
)


@pytest.fixture
def create(server: MariaDb) -> str:
    return CREATE.format(ai_ci=find_target_collation("utf8mb4_0900_ai_ci", server.name))


@pytest.fixture
def session(empty_server: MariaDb, create: str) -> Iterator[TargetSession]:
    execute(empty_server, "CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", create)
    opened = TargetSession(target_of(empty_server))
    yield opened
    opened.close()


def compare(session: TargetSession, *tables: TableDef) -> list[str]:
    expected = expect_tables(tables, dialect_of(session))
    return compare_definitions(expected, read_definitions(session, expected.names, dialect_of(session)))


def test_equal_table_has_no_differences(session: TargetSession) -> None:
    require_definitions(session, TargetSection(db_type=dialect_of(session)), [SOURCE])
    expected = expect_tables([SOURCE], dialect_of(session))
    assert (
        compare_definitions(
            ExpectedState.from_json(expected.to_json()),
            read_definitions(session, expected.names, dialect_of(session)),
            indexes=True,
        )
        == []
    )


@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        ("ADD COLUMN mine INT", "column mine is the target's own"),
        ("DROP COLUMN b", "column b is missing"),
        ("ADD UNIQUE (ai)", "unique key (ai) is the target's own"),
        ("DROP INDEX u", "unique key (e, v(4)) is missing"),
        (
            "MODIFY v VARCHAR(20) COLLATE utf8mb4_general_ci",
            "column v has collation utf8mb4_general_ci, not utf8mb4_bin",
        ),
        ("MODIFY v VARCHAR(10)", "column v is varchar(10), not varchar(20)"),
        ("MODIFY v VARCHAR(20) NOT NULL", "column v is NOT NULL, unlike the source"),
        ("MODIFY e ENUM('a')", "column e is enum('a'), not enum('a','it''s')"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, e)", "unique key (id) is missing"),
    ],
)
def test_difference_that_can_lose_rows_is_reported_as_drift(
    session: TargetSession, statement: str, difference: str
) -> None:
    # hazards
    session.execute(f"ALTER TABLE d.t {statement}")
    with pytest.raises(Drift, match="differ from the source's") as drift:
        require_definitions(session, TargetSection(db_type=dialect_of(session)), [SOURCE])
    assert f"d.t: {difference}" in drift.value.message


@pytest.mark.parametrize(
    "statement", ["ADD INDEX mine (b(3))", "DROP INDEX i", "COMMENT 'mine'", "ALTER v SET DEFAULT 'x'"]
)
def test_differences_that_lose_no_rows_are_ignored(session: TargetSession, statement: str) -> None:
    session.execute(f"ALTER TABLE d.t {statement}")
    assert compare(session, SOURCE) == []


def test_missing_table_and_view_instead_of_a_table_are_reported(session: TargetSession) -> None:
    session.execute("CREATE VIEW d.other AS SELECT 1")
    missing, other = table("gone", col("a")), table("other", col("a"))
    assert compare(session, missing, other) == ["d.gone: the table is missing", "d.other: it is a view, not a table"]


def test_unexpected_databases_and_tables_are_reported(session: TargetSession) -> None:
    expected = expect_tables(
        [], dialect_of(session), absent=[("d", "t"), ("d", "x")], databases={"d": False, "e": True}
    )
    assert compare_definitions(expected, read_definitions(session, expected.names, dialect_of(session))) == [
        "database d is still there",
        "database e is missing",
        "d.t: the table is still there",
    ]


def test_expected_definitions_after_a_ddl() -> None:
    old, new = table("a", col("x")), table("b", col("x"))
    renamed = expect_after_ddl(DdlSide((), (old,)), DdlSide((), (new,)), "mariadb")
    assert [(name, form is None) for name, form in renamed.tables.items()] == [(("d", "a"), True), (("d", "b"), False)]
    # a DROP DATABASE removes its tables one by one, so only the missing database proves that the DDL is done
    dropped = expect_after_ddl(DdlSide((DbInfo(2, "d", "", "", {}),), (old,)), DdlSide((), ()), "mariadb")
    assert (dropped.databases, dropped.tables) == ({"d": False}, {})


def test_expected_empty_tables_after_a_ddl() -> None:
    old, new = table("a", col("x"), id=5), table("A", col("x"), id=6)

    def after(action: Action, *sides: tuple[TableDef, ...]) -> ExpectedState:
        return expect_after_ddl(*(DdlSide((), side) for side in sides), "mariadb", action)

    assert after(Action.CREATE_TABLE, (), (new,)).empty == {("d", "A"): ()}
    truncated = after(Action.TRUNCATE_TABLE, (old,), (new,))
    assert (truncated.empty, truncated.moves_rows) == ({("d", "A"): ()}, True)
    assert after(Action.ADD_COLUMN, (old,), (replace(new, id=5),)).empty == {}
    assert after(Action.RECOVER_TABLE, (), (new,)).empty == {}
    parts = [{"definitions": [{"id": n, "name": {"O": f"p{n % 10}"}} for n in ids]} for ids in ((11, 12), (11, 22))]
    was, now = (table("a", col("x"), id=5, partition=part) for part in parts)
    assert after(Action.TRUNCATE_PARTITION, (was,), (now,)).empty == {("d", "a"): ("p2",)}
    assert ExpectedState.from_json(truncated.to_json()) == truncated


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE d.t COMMENT 'x'", "ALTER TABLE d.t ALTER v SET DEFAULT 'x'", "ALTER TABLE d.t RENAME INDEX i TO k"],
)
def test_fingerprint_changes_with_the_definition(session: TargetSession, statement: str) -> None:
    #
    names = [("d", "t"), ("d", "u"), ("d", "")]
    before = digest_definitions(session, names)
    session.execute("INSERT INTO d.t (id) VALUES (1)")
    session.execute("TRUNCATE TABLE d.t")
    assert digest_definitions(session, names) == before
    session.execute(statement)
    assert digest_definitions(session, names) != before


@pytest.mark.servers("mariadb")
def test_definition_with_bytes_as_default_is_read(session: TargetSession) -> None:
    # MariaDB shows these bytes in SHOW CREATE TABLE as they are, which is no UTF-8.
    session.execute("CREATE TABLE d.bytes (a INT PRIMARY KEY, b BINARY(2) DEFAULT X'41FF')")
    shown = read_create_statement(session, ("d", "bytes"))
    assert shown is not None
    assert "41FF" in shown
    assert digest_definitions(session, [("d", "bytes")])


@pytest.mark.servers("mariadb")  # MySQL does not reveal its encoding of such names (docs/reference/compatibility.md)
def test_tables_with_non_ascii_names_have_numbers(session: TargetSession) -> None:
    # the server encodes Ä, Σ and ẞ in file names in different ways
    names = [("ÜBERSICHT d", name) for name in ("ÄPFEL", "ΟΔΟΣ", "İlan", "ẞTADT", "a-b")]
    session.execute("CREATE DATABASE `ÜBERSICHT d`")
    try:
        for db, name in names:
            session.execute(f"CREATE TABLE `{db}`.`{name}` (x INT)")
        found = read_table_numbers(session, names, dialect_of(session))
        assert found is not None
        assert len(found) == len(set(found.values())) == len(names)
    finally:
        session.execute("DROP DATABASE `ÜBERSICHT d`")


def test_swapped_equal_tables_keep_their_numbers(session: TargetSession, create: str) -> None:
    # a newly created table gets a number that was never used
    session.execute(create.replace("d.t", "d.u"))
    names = [("d", "t"), ("d", "u"), ("d", ""), ("d", "gone")]
    before = read_table_numbers(session, names, dialect_of(session))
    assert before is not None
    assert set(before) == {"d/t", "d/u"}
    session.execute("RENAME TABLE d.t TO d.z, d.u TO d.t, d.z TO d.u")
    assert read_table_numbers(session, names, dialect_of(session)) == {"d/t": before["d/u"], "d/u": before["d/t"]}
    session.execute("TRUNCATE TABLE d.t")
    after = read_table_numbers(session, names, dialect_of(session))
    assert after is not None
    assert after["d/t"] not in before.values()


def test_types_are_normalized_as_servers_show_them() -> None:
    shown = {
        "int(10) unsigned zerofill": "int unsigned",
        "bigint(20)": "bigint",
        "float(7,2)": "float(7,2)",
        "year(4)": "year",
        "longtext": "text",
        "json": "text",
        "mediumblob": "blob",
        "decimal(5,2)": "decimal(5,2)",
        "datetime(3)": "datetime(3)",
    }
    assert {text: normalize_type(text, "mariadb") for text in shown} == shown
    assert normalize_type("json", "mysql") == "json"
    # How servers show four-byte characters.
    assert [normalize_type("enum('🐬')", one) for one in ("mariadb", "mysql", "tidb")] == [
        "enum('?')", "enum('?')", "enum('🐬')",
    ]  # fmt: skip
