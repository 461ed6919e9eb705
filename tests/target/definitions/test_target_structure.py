"""Both sides' structures are read, compared by the consequence of each difference, and reduced to what they share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.mariadb import MariaDb, dialect_of, execute
from support.tabledefs import col, key, primary, table
from support.tableinfo import table_info_of
from support.windows import target_of

from binlake.config.servers import TargetTable
from binlake.ddl.definitions import LandedDdl, Shapes, TableShape
from binlake.rows.schema import DbInfo, RowIdentity, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.target.definitions.definitions import compare_definitions, expect_tables, read_definitions
from binlake.target.definitions.forms import TableForm, build_expected_form
from binlake.target.definitions.structure import (
    StructureDifference,
    compare_structures,
    derive_shape,
    find_shared_identity,
    list_refusals,
)
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb

ALL_TYPES = """CREATE TABLE d.every (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, ti TINYINT, si SMALLINT UNSIGNED, mi MEDIUMINT, i INT DEFAULT 7, de DECIMAL(38,19),
    de0 DECIMAL(10), f FLOAT, d DOUBLE, b1 BIT(1) NOT NULL, b64 BIT(64), y YEAR, da DATE, ti3 TIME(3), dt DATETIME, dt6 DATETIME(6),
    ts TIMESTAMP(3) NULL, c CHAR(5), v VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin, bi BINARY(4), vb VARBINARY(9), tt TINYTEXT,
    te TEXT, mt MEDIUMTEXT, lt LONGTEXT, tb TINYBLOB, bl BLOB, mb MEDIUMBLOB, lb LONGBLOB, e ENUM('a','it''s'), s SET('x','y'), j JSON,
    g INT AS (i + 1) VIRTUAL, st BIGINT AS (i * 2) STORED, PRIMARY KEY (id), UNIQUE KEY u (i, v(4)), KEY k (da))"""  # noqa: E501


@pytest.fixture
def session(empty_server: MariaDb) -> Iterator[TargetSession]:
    execute(empty_server, "CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    opened = TargetSession(target_of(empty_server))
    yield opened
    opened.close()


def structure(session: TargetSession, name: str) -> TableForm | None:
    """The structure of d.`name` on the target."""
    return read_definitions(session, [("d", name)], dialect_of(session)).tables["d", name]


def test_table_of_all_types_is_read_as_the_source_would_define_it(session: TargetSession) -> None:  # S4-22, S4-28
    session.execute(ALL_TYPES)
    info = table_info_of(session, ("d", "every"), dialect_of(session))
    assert info is not None
    read_back = TableDef.from_json(info, DbInfo(1, "d", "", "", {}))
    expected = expect_tables([read_back], dialect_of(session))
    assert (
        compare_definitions(expected, read_definitions(session, expected.names, dialect_of(session)), indexes=True)
        == []
    )
    assert [c.name for c in read_back.columns if c.tp == t.JSON] == ["j"]
    assert read_back.find_identity().columns == ("id",)
    assert [c.name for c in read_back.columns if c.is_generated] == ["g", "st"]
    assert table_info_of(session, ("d", "nothing"), dialect_of(session)) is None


SOURCE = table(
    "t",
    col("id", t.LONG, not_null=True),
    col("user_id", t.LONG, not_null=True),
    col("name", t.VARCHAR, flen=20),
    keys=(primary("id"), key("u", "user_id")),
)


KEYS = "id INT PRIMARY KEY, user_id INT NOT NULL UNIQUE"


def differences(session: TargetSession, create: str) -> list[tuple[str, str]]:
    session.execute(f"CREATE TABLE d.t ({create})")
    found = compare_structures(build_expected_form(SOURCE, dialect_of(session)), structure(session, "t"))
    return [(one.weight, one.text) for one in found]


def test_own_key_and_columns_of_the_target_say_what_keeps_them(session: TargetSession) -> None:  # S4-26, R-12
    create = (
        "new_id INT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL, user_id INT NOT NULL UNIQUE, name VARCHAR(20),"
        " note VARCHAR(9) DEFAULT 'x'"
    )
    assert differences(session, create) == [
        ("preserve", "column new_id is the target's own"),
        ("preserve", "column note is the target's own"),
        ("preserve", "unique key (id) is missing"),
        ("preserve", "unique key (new_id) is the target's own"),
    ]
    form = structure(session, "t")
    assert form is not None
    assert find_shared_identity(build_expected_form(SOURCE, dialect_of(session)), form) == ("user_id",)


@pytest.mark.parametrize(
    ("create", "first"),
    [
        (
            f"{KEYS}, name VARCHAR(20), must INT NOT NULL",
            "column must is the target's own and has no default",
        ),
        (f"{KEYS}, name VARCHAR(9)", "column name is varchar(9), not varchar(20)"),
        (f"{KEYS}, name VARCHAR(20) UNIQUE", "unique key (name) is the target's own"),
        ("id INT NOT NULL, user_id INT NOT NULL, name VARCHAR(20)", "unique key (id) is missing"),
        (f"{KEYS}, name VARCHAR(20) NOT NULL", "column name is NOT NULL, unlike the source"),
        (f"{KEYS}, name VARCHAR(20), n INT DEFAULT 1 UNIQUE", "unique key (n) is the target's own"),
        (f"{KEYS}, name VARCHAR(20), n INT AS (user_id % 2) STORED UNIQUE", "unique key (n) is the target's own"),
        (
            "id INT PRIMARY KEY COLLATE utf8mb4_general_ci, user_id INT NOT NULL UNIQUE,"
            " name VARCHAR(20) COLLATE utf8mb4_general_ci",
            "column name has collation utf8mb4_general_ci, not utf8mb4_bin",
        ),
        (
            "new_id INT AUTO_INCREMENT PRIMARY KEY, id INT, user_id INT NOT NULL, name VARCHAR(20)",
            "column new_id is the target's own, and no key of both sides tells whose value it is",
        ),
    ],
)  # fmt: skip
def test_differences_that_lose_rows_or_values_are_fatal(
    session: TargetSession, create: str, first: str
) -> None:  # S4-26, R-13
    assert differences(session, create)[0] == ("fatal", first)


def test_equal_target_has_no_differences_and_a_missing_one_is_reported(session: TargetSession) -> None:  # S4-26
    source = build_expected_form(SOURCE, dialect_of(session))
    assert compare_structures(source, None) == [StructureDifference("the table is missing", "fatal")]
    assert differences(session, "id INT PRIMARY KEY, user_id INT NULL, name VARCHAR(20), UNIQUE (user_id)") == [
        ("harmless", "column user_id is NULL, unlike the source")
    ]


REMEDY = ": its values come from the source, so MODIFY it at the target to a column without an expression"


def test_missing_or_generated_target_column_needs_sync_mode_2(session: TargetSession) -> None:  # S4-27
    create = "extra INT, id INT PRIMARY KEY, user_id INT AS (id + 1) STORED UNIQUE"
    assert differences(session, create) == [
        ("preserve", "column extra is the target's own"),
        ("partial", "column name is missing: its values would be lost"),
        ("partial", f"column user_id is stored, not plain{REMEDY}"),
    ]


PRESERVED = TargetTable(db_name="d", tbl_name="t", preserve=True)


def derive_shared(session: TargetSession, create: str, *, sync_mode: int = 1) -> tuple[TableDef, list[str]]:
    """The definition that both sides share, if requested, and the refused differences."""
    session.execute(f"CREATE TABLE d.t ({create})")
    there = structure(session, "t")
    assert there is not None
    definition = derive_shape(build_expected_form(SOURCE, dialect_of(session)), there, PRESERVED, sync_mode).apply_to(
        SOURCE
    )
    return definition, list_refusals(compare_structures(build_expected_form(definition, dialect_of(session)), there))


def test_rows_are_found_by_the_shared_key_if_the_target_has_its_own(session: TargetSession) -> None:  # S4-26, S4-29
    definition, left = derive_shared(
        session,
        "new_id INT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL, user_id INT NOT NULL UNIQUE, name VARCHAR(20),"
        " Note VARCHAR(9) DEFAULT 'x', at TIMESTAMP DEFAULT NOW() ON UPDATE NOW(), twice INT AS (id * 2)",
    )
    assert left == []
    assert definition.find_identity() == RowIdentity("unique", ("user_id",))
    assert definition.own == ("new_id", "note", "at", "twice")
    # Columns that the server sets at each write are not preserved.
    assert definition.kept == ("new_id", "note")


def test_keys_on_left_out_columns_are_left_out(session: TargetSession) -> None:  # S4-27
    definition, left = derive_shared(session, "id INT PRIMARY KEY, name VARCHAR(20) AS (id) STORED", sync_mode=2)
    assert ([c.name for c in definition.columns], left) == (["id"], [])
    assert [key.name for key in definition.list_unique_keys()] == ["PRIMARY"]
    assert (definition.own, definition.kept) == (("name",), ())


def test_other_differences_stay_refused(session: TargetSession) -> None:
    _, left = derive_shared(
        session, "id BIGINT PRIMARY KEY, user_id INT NOT NULL UNIQUE, name VARCHAR(20) UNIQUE, must INT NOT NULL"
    )
    assert left == [
        "column id is bigint, not int",
        "column must is the target's own and has no default",
        "unique key (name) is the target's own",
    ]


def test_shapes_follow_the_windows_ddl() -> None:  # S4-22, S4-23
    shape = TableShape(own=("note",), kept=("note",))
    other = table("u", col("id"), keys=(primary("id"),), id=101)
    truncated, renamed = (table(name, col("id"), keys=(primary("id"),), id=102) for name in ("t", "v"))
    ddls = Shapes({("d", "T"): shape}).follow(
        [
            ddl(DdlSide((), (SOURCE, other)), DdlSide((), (named(SOURCE, "u"), named(other, "t")))),  # swapped
            ddl(DdlSide((), (named(SOURCE, "u"),)), DdlSide((), (replace(truncated, name="u"),))),  # truncated
            ddl(DdlSide((), (replace(truncated, name="u"),)), DdlSide((), (renamed,))),
            ddl(DdlSide((), (renamed,)), DdlSide((), ())),
            ddl(DdlSide((), ()), DdlSide((), (renamed,))),
        ]
    )
    found = [{t.name: t.own for t in (*one.before.tables, *one.after.tables)} for one in ddls]
    own = ("note",)
    assert found == [{"t": (), "u": own}, {"u": own}, {"u": own, "v": own}, {"v": own}, {"v": ()}]
    assert (
        Shapes.from_list(json.loads(json.dumps(Shapes({("d", "T"): shape}).to_list()))).derive_base(SOURCE).kept == own
    )


def named(definition: TableDef, name: str) -> TableDef:
    return replace(definition, name=name)


def ddl(before: DdlSide, after: DdlSide) -> LandedDdl:
    return LandedDdl(9, 9, 8, 2, 1, 3, "d", "t", "", "", "apply", "", before, after)
