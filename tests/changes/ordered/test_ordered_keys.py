"""The conflict keys of a row change: DM's vectors (data-migration 6.3), and cases where Binlake needs wider keys."""

from __future__ import annotations

import pytest
from support.tabledefs import col, key, primary, table

from binlake.changes.net import RowEvent
from binlake.changes.ordered import ChangeKeys
from binlake.common.sql import Dialect
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

Row = dict[str, str | None]


def int_key(name: str = "a") -> dict[str, object]:
    """An integer primary key that is the row's handle."""
    column = col(name, not_null=True)
    column["type"]["Flag"] |= t.FLAG_PRIMARY
    return column


def keys(definition: TableDef, before: Row | None, after: Row | None = None, dialect: Dialect = "mariadb") -> list[str]:
    op = "insert" if before is None else "delete" if after is None else "update"
    return [str(found) for found in ChangeKeys(definition, dialect).list_keys(RowEvent(1, 0, 0, op, before, after))]


def text(name: str, collate: str = "utf8mb4_bin") -> dict[str, object]:
    return col(name, t.VARCHAR, flen=20, collate=collate)


def test_an_update_has_the_keys_of_both_images() -> None:
    # S0-70: old and new values; secondary unique keys first, an integer primary key last
    tb1 = table("tb1", int_key("c"), col("c2"), text("c3"), keys=(key("c3", "c3"),), db="db", pk_is_handle=True)
    found = keys(tb1, {"c": "1", "c2": "2", "c3": "abc"}, {"c": "3", "c2": "4", "c3": "abc"})
    assert found == ["abc.c3.db.tb1", "1.c.db.tb1", "abc.c3.db.tb1", "3.c.db.tb1"]


def test_prefix_indexes_use_the_start_of_the_value() -> None:
    # U-29, hazards R-36
    short = table("tb1", int_key("c"), text("c3"), keys=(key("c3", ("c3", 1)),), db="db", pk_is_handle=True)
    found = keys(short, {"c": "1", "c3": "abc"}, {"c": "3", "c3": "adef"})
    assert found == ["a.c3.db.tb1", "1.c.db.tb1", "a.c3.db.tb1", "3.c.db.tb1"]
    blob = table("tb1", col("a"), col("b", t.BLOB, charset="binary"), keys=(key("b", ("b", 2)),), db="db")
    assert keys(blob, {"a": "1", "b": "AABBCC"}) == ["AABB.b.db.tb1"]


COMPOSITE = table("tb1", col("a"), col("b", t.BLOB, charset="utf8mb4"), keys=(key("k", "a", ("b", 3)),), db="db")


@pytest.mark.parametrize(
    ("definition", "row", "expected"),
    [
        (table("tb1", col("a"), col("b"), keys=(key("a", "a"),), db="db"), ("100", "200"), ["100.a.db.tb1"]),
        (
            table("tb1", col("a"), col("b", t.BLOB, charset="utf8mb4"), keys=(key("b", ("b", 3)),), db="db"),
            ("1", "1234"),
            ["123.b.db.tb1"],
        ),
        (COMPOSITE, ("1", "1234"), ["1.a.123.b.db.tb1"]),
        # NULL values of a composite key are left out.
        (COMPOSITE, ("1", None), ["1.a.db.tb1"]),
        (table("tbl", col("a"), db="db"), ("10",), ["10.a.db.tbl"]),
        # A non-unique index is not a key.
        (
            table("tbl", col("a"), col("b", t.DOUBLE), keys=(key("b", "b", unique=False),), db="db"),
            ("60", "70.5"),
            ["60.a.70.5.b.db.tbl"],
        ),
        (
            table("tbl", col("a"), text("b"), col("c"), keys=(key("a", "a", unique=False),), db="db"),
            ("13", "abcdef", "15"),
            ["13.a.abcdef.b.15.c.db.tbl"],
        ),
        (
            table("tbl", int_key(), text("b"), keys=(key("b", "b"),), db="db", pk_is_handle=True),
            ("16", "xyz"),
            ["xyz.b.db.tbl", "16.a.db.tbl"],
        ),
        (
            table("tbl", col("a"), text("b"), keys=(key("a", "a"), primary("b")), db="db"),
            ("16", "xyz"),
            ["16.a.db.tbl", "xyz.b.db.tbl"],
        ),
        (table("tbl", col("a"), col("b"), keys=(primary("a", "b"),), db="db"), ("59", "69"), ["59.a.69.b.db.tbl"]),
        (
            table(
                "tbl",
                *(col(name) for name in "abc"),
                keys=(
                    primary("a", "b"),
                    key("bc", "b", "c"),
                    key("abc", "a", "b", "c", unique=False),
                    key("ca", "c", "a"),
                ),
                db="db",
            ),
            ("27", "37", "47"),
            ["27.a.37.b.db.tbl", "37.b.47.c.db.tbl", "47.c.27.a.db.tbl"],
        ),
        # A key whose columns are all NULL gives no conflict key.
        (table("tbl", col("a"), col("b"), keys=(primary("a"), key("b", "b")), db="db"), ("17", None), ["17.a.db.tbl"]),
        # If every key is NULL, the whole row is the key.
        (table("tbl", col("a"), col("b"), keys=(key("b", "b"),), db="db"), ("17", None), ["17.a.NULL.b.db.tbl"]),
    ],
)
def test_keys_match_dms_vectors(definition: TableDef, row: tuple[str | None, ...], expected: list[str]) -> None:
    # S0-71: all unique indexes; no key at all = the whole row
    names = [column.name for column in definition.columns]
    assert keys(definition, dict(zip(names, row, strict=True))) == expected


@pytest.mark.parametrize(("collate", "expected"), [("utf8mb4_unicode_ci", "xyz"), ("utf8mb4_bin", "XyZ")])
def test_values_equal_in_a_collation_have_one_key(collate: str, expected: str) -> None:
    ci = table("tbl", int_key(), text("b", collate), keys=(key("b", "b"),), db="db", pk_is_handle=True)
    assert keys(ci, {"a": "16", "b": "XyZ"}) == [f"{expected}.b.db.tbl", "16.a.db.tbl"]
    # trailing spaces do not distinguish values of any character column
    assert keys(ci, {"a": "16", "b": "XyZ  "}) == [f"{expected}.b.db.tbl", "16.a.db.tbl"]


def test_different_values_never_join_to_one_key() -> None:
    # The originals join values by dots, so that these two would be one key
    pair = table("tbl", text("a"), text("b"), keys=(primary("a", "b"),), db="db")
    first, second = (RowEvent(1, 0, 0, "insert", None, {"a": a, "b": b}) for a, b in [("1.a.2", "3"), ("1", "2.b.3")])
    found = ChangeKeys(pair, "mariadb")
    assert found.list_keys(first) != found.list_keys(second)


def test_equal_numbers_with_different_texts_are_one_key() -> None:
    real = table("tbl", col("a", t.DOUBLE), keys=(key("a", "a"),), db="db")
    assert keys(real, {"a": "-0"}) == keys(real, {"a": "0"})
    assert keys(real, {"a": "1e3"}) == ["1000.a.db.tbl"]


def test_key_that_is_not_in_images_makes_its_table_serial() -> None:  # U-29
    # DM skips such an index, and two changes that collide on it may swap
    hidden = col("_v$_e_0", t.VARCHAR, hidden=True, generated_expr_string="lower(`b`)", generated_stored=False)
    expression = table("tbl", int_key(), text("b"), hidden, keys=(key("e", "_v$_e_0"),), db="db", pk_is_handle=True)
    row: Row = {"a": "1", "b": "Alice"}
    assert keys(expression, row, dialect="tidb") == ["1.a.db.tbl", "any.index e.db.tbl"]
    # MariaDB has no index on an expression, so there is nothing to collide on.
    assert keys(expression, row) == ["1.a.db.tbl"]
    virtual = col("v", generated_expr_string="a % 7", generated_stored=False)
    shown = table("tbl", int_key(), virtual, keys=(key("v", "v"),), db="db", pk_is_handle=True)
    assert keys(shown, {"a": "1"}) == ["1.a.db.tbl", "any.index v.db.tbl"]
