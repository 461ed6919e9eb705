"""The columns, keys and identity of a table definition."""

from __future__ import annotations

import pytest
from support.tidb_json import INT_PK, article_table, column, index, table_def, table_info

from binlake.errors import SchemaError
from binlake.rows.schema import ColumnInfo, DbInfo, RowIdentity, TableDef
from binlake.rows.schema import mysqltypes as t

NOT_NULL = t.FLAG_NOT_NULL


def test_an_integer_clustered_key_is_the_identity() -> None:
    table = article_table()
    assert table.find_identity() == RowIdentity("primary", ("id",))
    assert [(i.name, i.primary, [c.name for c in i.columns]) for i in table.list_unique_keys()] == [
        ("PRIMARY", True, ["id"])
    ]


def test_a_composite_primary_key_keeps_the_order_of_its_index() -> None:
    cols = [column(1, "a", flag=INT_PK), column(2, "b", flag=INT_PK)]
    primary = index(1, "PRIMARY", [("b", -1), ("a", -1)], unique=True, primary=True)
    assert table_def(table_info(1, "t", cols, index_info=[primary])).find_identity().columns == ("b", "a")


@pytest.mark.parametrize(
    ("cols", "indexes", "identity"),
    [
        ([column(1, "a", flag=NOT_NULL)], [index(1, "u", [("a", -1)], unique=True)], RowIdentity("unique", ("a",))),
        ([column(1, "a")], [index(1, "u", [("a", -1)], unique=True)], RowIdentity("row", ("a",))),
        (
            [column(1, "a", t.VARCHAR, flag=NOT_NULL)], [index(1, "u", [("a", 3)], unique=True)],
            RowIdentity("row", ("a",)),
        ),
        (
            [column(1, "a", flag=NOT_NULL)], [index(1, "u", [("a", -1)], unique=True, state=2)],
            RowIdentity("row", ("a",)),
        ),
        ([column(1, "a", flag=NOT_NULL)], [index(1, "k", [("a", -1)])], RowIdentity("row", ("a",))),
        (
            [column(1, "a"), column(2, "b", flag=NOT_NULL)],
            [index(1, "u", [("a", -1), ("b", -1)], unique=True), index(2, "w", [("b", -1)], unique=True)],
            RowIdentity("unique", ("b",)),
        ),
        (
            [column(1, "a"), column(2, "b", flag=NOT_NULL, generated_expr_string="a")],
            [index(1, "u", [("b", -1)], unique=True)],
            RowIdentity("row", ("a",)),
        ),
    ],
    ids=["not null", "nullable", "prefix", "not public", "not unique", "second fits", "virtual"],
)  # fmt: skip
def test_identity_without_a_primary_key(cols: list, indexes: list, identity: RowIdentity) -> None:
    assert table_def(table_info(1, "t", cols, index_info=indexes)).find_identity() == identity


def test_columns_visible_to_queries_and_in_row_changes() -> None:
    cols = [
        column(1, "id"),
        column(2, "writing", state=2),
        column(3, "virt", generated_expr_string="id + 1"),
        column(4, "stored", generated_expr_string="id + 1", generated_stored=True),
        column(5, "_V$_x", hidden=True, generated_expr_string="lower(id)"),
    ]
    table = table_def(table_info(1, "t", cols))
    assert [c.name for c in table.all_columns] == ["id", "writing", "virt", "stored", "_V$_x"]
    assert [c.name for c in table.columns] == ["id", "virt", "stored"]
    assert [c.name for c in table.row_columns] == ["id", "stored"]
    found = table.find_column("STORED")
    assert found is not None
    assert found.id == 4


def test_type_names_and_binary_columns() -> None:
    def of(tp: int, charset: str = "utf8mb4") -> tuple[str, bool]:
        info = ColumnInfo.from_json(column(1, "c", tp, charset=charset))
        return info.type_name, info.is_binary

    assert of(t.BLOB) == ("text", False)
    assert of(t.LONGBLOB, "binary") == ("longblob", True)
    assert of(t.VARCHAR, "binary") == ("varbinary", True)
    assert of(t.STRING) == ("char", False)
    assert of(t.BIT, "binary") == ("bit", True)
    assert of(t.JSON, "binary") == ("json", False)
    assert of(t.INT24, "binary") == ("mediumint", False)


def test_unreadable_table_info_error_names_the_table() -> None:
    with pytest.raises(SchemaError, match=r"TableInfo cannot be read.*db=d table_id=5"):
        TableDef.from_json({"id": 5, "name": {"O": "t"}, "cols": [{}]}, DbInfo(1, "d", "", "", {}))
