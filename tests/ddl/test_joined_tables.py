"""The joined definition of differently shaped tables: each column, type and key must hold the rows of all tables."""

from __future__ import annotations

from typing import Any

import pytest
from support.tabledefs import col, key, primary, table

from binlake.ddl.joined import Conflict, fill_with_defaults, join_tables, number_columns_as, write_alter
from binlake.errors import SchemaError
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

Json = dict[str, Any]


def one_table(*columns: Json, number: int = 1, keys: tuple[Json, ...] = (), **more: Any) -> TableDef:
    return table(f"t_{number}", col("id", not_null=True), *columns, keys=(primary("id"), *keys), id=number, **more)


def joined_column(first: Json, second: Json) -> ColumnInfo:
    joined = join_tables((one_table(first), one_table(second, number=2)))
    column = joined.find_column(first["name"]["O"])
    assert column is not None
    return column


def varchar(length: int, **more: Any) -> Json:
    return col("c", t.VARCHAR, flen=length, **more)


def generated(tp: int, stored: bool = False, by: str = "`id`") -> Json:
    return col("c", tp, generated_expr_string=by, generated_stored=stored)


WIDER = {
    "the display width of a number says nothing": (col("c", t.LONG, flen=10), col("c", t.LONG, flen=11)),
    "a larger integer": (col("c", t.LONGLONG, flen=20), col("c", t.TINY, flen=4)),
    "a longer text": (varchar(9), varchar(8)),
    "the decimals of a text say nothing": (varchar(9, decimal=0), varchar(9, decimal=-1)),
    "a larger text": (col("c", t.LONGBLOB, flen=-1), col("c", t.BLOB, flen=65_535)),
    "a longer CHAR": (col("c", t.STRING, flen=9), col("c", t.STRING, flen=8)),
    "the decimals of a CHAR say nothing": (
        col("c", t.STRING, flen=9, decimal=0),
        col("c", t.STRING, flen=9, decimal=-1),
    ),
    "more digits": (col("c", t.NEWDECIMAL, flen=12, decimal=2), col("c", t.NEWDECIMAL, flen=10, decimal=2)),
    "further elements": (col("c", t.ENUM, elems=("a", "b", "c")), col("c", t.ENUM, elems=("a", "b"))),
    "further members": (col("c", t.SET, elems=("a", "b")), col("c", t.SET, elems=("a",))),
    "the same expression": (generated(t.LONG), generated(t.LONG)),
}


@pytest.mark.parametrize("wide_first", [True, False])
@pytest.mark.parametrize("name", WIDER)
def test_wider_type_is_chosen(name: str, wide_first: bool) -> None:
    wide, narrow = WIDER[name]
    kind = wide["type"]
    found = joined_column(wide, narrow) if wide_first else joined_column(narrow, wide)
    assert (found.tp, found.elems) == (kind["Tp"], tuple(kind["Elems"]))
    if "say" not in name:
        assert (found.flen, found.decimal) == (kind["Flen"], kind["Decimal"])


NEITHER = {
    "a number and a moment": (col("c", t.LONG), col("c", t.DATETIME)),
    "a moment and a number": (col("c", t.DATETIME), col("c", t.LONG)),
    # In a column without fractional digits, 00:00:00.5 has another text.
    "fractional digits": (col("c", t.DATETIME, decimal=6), col("c", t.DATETIME, decimal=0)),
    "other decimals": (col("c", t.NEWDECIMAL, flen=12, decimal=3), col("c", t.NEWDECIMAL, flen=10, decimal=2)),
    # BINARY(9) pads a value of BINARY(8) with a zero byte.
    "a longer BINARY": (col("c", t.STRING, flen=9, charset="binary"), col("c", t.STRING, flen=8, charset="binary")),
    "a BLOB and a text": (col("c", t.BLOB, charset="binary"), col("c", t.BLOB)),
    "other elements": (col("c", t.ENUM, elems=("a", "c")), col("c", t.ENUM, elems=("a", "b"))),
    "signed and not": (col("c", t.LONGLONG), col("c", t.TINY, unsigned=True)),
    "another expression": (generated(t.LONG), generated(t.LONG, by="`id` + 1")),
    "stored and not": (generated(t.LONG), generated(t.LONG, stored=True)),
    "a generated column of another type": (generated(t.LONGLONG), generated(t.LONG)),
    "generated and written": (generated(t.LONG), col("c", t.LONG)),
}


@pytest.mark.parametrize("name", NEITHER)
def test_incompatible_types_are_a_conflict(name: str) -> None:
    with pytest.raises(Conflict, match=r"column c: d\.t_1 has .*, d\.t_2 has "):
        joined_column(*NEITHER[name])


def test_column_is_nullable_if_it_is_so_in_any_table() -> None:
    for first, second, not_null in ((True, True, True), (True, False, False), (False, True, False)):
        assert joined_column(varchar(9, not_null=first), varchar(8, not_null=second)).not_null is not_null


@pytest.mark.parametrize(
    ("column", "filled"),
    [
        (col("c", default="5"), "5"),
        (col("c"), None),
        # The current time and an expression have no fixed value.
        (col("c", t.DATETIME, default="CURRENT_TIMESTAMP"), None),
        (col("c", t.VARCHAR, flen=36, default="uuid()", default_is_expr=True), None),
    ],
    ids=["constant", "no default", "current time", "expression"],
)
def test_rows_without_a_column_of_a_created_table_get_its_default(column: Json, filled: str | None) -> None:
    found = joined_column(column, column)
    assert (found.origin_default, found.default) == (filled, column.get("default"))


def test_column_has_the_same_id_in_every_joined_definition() -> None:
    """The mirror would take another id for another column."""
    both = join_tables((one_table(col("a"), col("b")), one_table(col("B"), col("c"), number=2)))
    alone = join_tables((one_table(col("b")),))
    numbers = {column.name: column.id for column in both.columns}
    assert len(set(numbers.values())) == 4
    assert {column.name: column.id for column in alone.columns} == {name: numbers[name] for name in ("id", "b")}
    assert [column.offset for column in both.columns] == [0, 1, 2, 3]
    # These two names have the same crc32 in the bits that an id has.
    same = join_tables((one_table(col("iiwucoup"), col("uejgtcuo")),))
    first, second = (same.columns[at].id for at in (1, 2))
    assert second == first + 1


def test_unique_keys_must_be_in_all_tables_and_plain_ones_in_any() -> None:
    unique, other = key("u", "a"), key("w", ("b", 3))
    plain, hidden = key("p", "b", unique=False), {**key("h", "a", unique=False), "is_invisible": True}
    building = {**key("x", "a", "b", unique=False), "state": 3}
    columns = (varchar(9) | {"name": {"O": "a", "L": "a"}}, varchar(9) | {"name": {"O": "b", "L": "b"}})
    one = one_table(*columns, keys=(unique, other, plain, building))
    two = one_table(*columns, number=2, keys=(key("U2", "A"), hidden))
    joined = join_tables((one, two))
    shown = [(index.name, index.unique, index.visible, [(c.name, c.offset, c.length) for c in index.columns])
             for index in joined.indexes]  # fmt: skip
    assert shown == [
        ("PRIMARY", True, True, [("id", 0, -1)]),
        ("u", True, True, [("a", 1, -1)]),
        ("p", False, True, [("b", 2, -1)]),
        ("h", False, False, [("a", 1, -1)]),
    ]
    # A key on a prefix of a column is another key.
    longer = one_table(*columns, number=3, keys=(key("w", ("b", 4)),))
    assert [index.name for index in join_tables((one, longer)).list_unique_keys()] == ["PRIMARY"]


def test_tables_without_a_common_key_are_a_conflict() -> None:
    """The key of one table could not identify the rows of the other."""
    one = table("t_1", col("id"), col("b"), keys=(primary("id"),), id=1)
    two = table("t_2", col("id"), col("b"), keys=(primary("b"),), id=2)
    keyless = table("t_3", col("id"), col("b"), id=3)
    with pytest.raises(Conflict, match=r"d\.t_1, d\.t_2 have no unique key in common"):
        join_tables((one, two))
    assert join_tables((one, keyless)).list_unique_keys() == ()
    assert join_tables((keyless, one)).find_identity().kind == "row"


def test_handle_key_of_the_source_becomes_an_index() -> None:
    number = col("id")
    number["type"]["Flag"] = t.FLAG_PRIMARY | t.FLAG_NOT_NULL
    handle = table("t_1", number, col("a"), id=1, pk_is_handle=True)
    clustered = one_table(col("a"), number=2, is_common_handle=True)
    for group in ((handle,), (handle, clustered), (clustered,)):
        joined = join_tables(group)
        assert (joined.pk_is_handle, joined.is_common_handle) == (False, False)
        assert [index.name for index in joined.indexes] == ["PRIMARY"]
        assert joined.primary_key == ("id",)


def flagged(column: Json, flag: int) -> Json:
    return {**column, "type": {**column["type"], "Flag": column["type"]["Flag"] | flag}}


def test_alter_has_everything_that_differs() -> None:
    moment = col("at", t.DATETIME, decimal=3, flen=23, default="CURRENT_TIMESTAMP")
    was = one_table(
        col("gone"), varchar(9), col("d"), keys=(key("old", "gone", unique=False), key("same", "d", unique=False))
    )
    now = table(
        "t_1",
        col("d"),
        varchar(12, not_null=True, default="x"),
        flagged(col("n", t.LONGLONG, flen=20, not_null=True), t.FLAG_AUTO_INCREMENT),
        flagged(moment, t.FLAG_ON_UPDATE_NOW),
        col("said", comment="it's"),
        col("b", t.BLOB, flen=65_535, charset="binary"),
        keys=(
            primary("n"),
            key("u", "d", ("c", 3)),
            key("same", "d", unique=False),
            {**key("building", "n", unique=False), "state": 3},
        ),
    )
    assert write_alter(was, now) == (
        "ALTER TABLE `d`.`t_1` DROP PRIMARY KEY, DROP INDEX `old`, DROP COLUMN `id`, DROP COLUMN `gone`,"
        " MODIFY COLUMN `c` varchar(12) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'x',"
        " ADD COLUMN `n` bigint NOT NULL AUTO_INCREMENT,"
        " ADD COLUMN `at` datetime(3) NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),"
        " ADD COLUMN `said` int NULL COMMENT 'it\\'s', ADD COLUMN `b` blob NULL,"
        " ADD PRIMARY KEY (`n`), ADD UNIQUE INDEX `u` (`d`, `c`(3))"
    )
    assert write_alter(now, now) == ""


@pytest.mark.parametrize("column", [generated(t.LONG), col("c", default="uuid()", default_is_expr=True)])
def test_alter_cannot_add_an_expression(column: Json) -> None:
    with pytest.raises(SchemaError, match="the column c has an expression"):
        write_alter(one_table(), one_table(column))


def test_only_columns_that_no_ddl_has_filled_are_filled() -> None:
    made = one_table(col("a", default="1"), col("b", default="2"), col("c", default="3", origin_default="0"))
    filled = fill_with_defaults(made, ["A", "c", "id"])
    assert [column.origin_default for column in filled.columns] == [None, "1", None, "0"]
    assert fill_with_defaults(made, ["c"]) is made


def test_new_columns_get_ids_that_neither_table_uses() -> None:
    known = table("t_1", col("b"), col("a"))
    new = table("t_2", col("A"), col("x"), col("y"), col("b"), id=2)
    numbered = number_columns_as(new, known)
    assert {column.name: column.id for column in numbered.columns} == {"A": 2, "x": 5, "b": 1, "y": 6}
