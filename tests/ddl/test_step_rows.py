"""Rows written after one DDL, when a later DDL runs together with it: how they are read, and their fill values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.tabledefs import Json, col, table

from binlake.ddl.joined import Conflict
from binlake.ddl.pessimistic import find_unreadable_column, keeps_rows_readable, require_one_fill
from binlake.ddl.shardlocks import OPEN, Hold
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

ID = col("id", t.LONG)


def definition(*columns: Json) -> TableDef:
    """A table with `id` and these columns."""
    return table("t", ID, *columns)


def with_id(number: int, *columns: Json) -> TableDef:
    """The same, but the second column has the id `number`, so it is another column than that of `definition`."""
    raw = definition(*columns).raw
    return table("t", cols=[raw["cols"][0], {**raw["cols"][1], "id": number}])


def step(before: TableDef, after: TableDef, sql: str = "ALTER TABLE t ADD COLUMN n INT", **more: Any) -> Hold:
    """A step of s1.t_1; `more`: fields of the hold."""
    return replace(Hold(("all", "t"), ("s1", "t_1"), 20, 21, sql, before, after), **more)


def texts(tp: int, **more: Any) -> TableDef:
    """A table with a column `n` of type `tp`."""
    return definition(col("n", tp, **more))


BLOB = texts(t.BLOB, charset="binary")


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (texts(t.VARCHAR), BLOB, "n"),
        (BLOB, texts(t.VARCHAR), "n"),
        (BLOB, texts(t.STRING, charset="binary"), ""),
        (texts(t.TIMESTAMP), texts(t.DATETIME), "n"),
        (texts(t.FLOAT), texts(t.DOUBLE), "n"),
        (texts(t.DOUBLE), texts(t.NEWDECIMAL), "n"),
        (texts(t.LONG), texts(t.VARCHAR), ""),
        (texts(t.VARCHAR), definition(), ""),
        (definition(), BLOB, ""),
        # The target computes the values of a generated column itself.
        (texts(t.VARCHAR), texts(t.BLOB, charset="binary", generated_expr_string="id", generated_stored=True), ""),
    ],
    ids=[
        "text to blob",
        "blob to text",
        "blob to binary",
        "timestamp to datetime",
        "float to double",
        "double to decimal",
        "number to text",
        "column dropped",
        "column added",
        "generated column",
    ],
)
def test_columns_of_one_kind_read_a_text_as_the_same_value(one: TableDef, other: TableDef, name: str) -> None:
    assert find_unreadable_column(one, other) == name


def test_rows_may_be_read_by_a_later_definition_that_keeps_their_values() -> None:
    added = step(definition(), texts(t.VARCHAR))
    assert keeps_rows_readable([added], texts(t.VARCHAR))
    assert keeps_rows_readable([added], definition(col("N", t.VARCHAR)))
    assert keeps_rows_readable([added], definition())
    assert not keeps_rows_readable([added], BLOB)
    # One incompatible step is enough.
    assert not keeps_rows_readable([added, step(texts(t.VARCHAR), BLOB)], BLOB)


def test_rows_cannot_be_read_across_a_rename() -> None:
    assert not keeps_rows_readable([step(definition(), texts(t.VARCHAR))], definition(col("m", t.VARCHAR)))
    # A column with another id is another column.
    assert keeps_rows_readable([step(definition(), texts(t.VARCHAR))], with_id(9, col("m", t.VARCHAR)))


def test_step_that_ends_where_it_starts_has_no_rows() -> None:
    def ending(until: int) -> Hold:
        return step(definition(), texts(t.VARCHAR), until=until)

    assert [keeps_rows_readable([ending(until)], BLOB) for until in (20, 21, OPEN)] == [True, False, False]


def filled_by(default: str | None, **more: Any) -> TableDef:
    """A table that added the column `n` with this value."""
    return definition(col("n", t.LONG, origin_default=default, default=default, **more))


def of_other_table(before: TableDef, after: TableDef, sql: str = "ALTER TABLE t ADD COLUMN n INT") -> Hold:
    return step(before, after, sql, source=("s2", "t_2"))


def test_tables_must_fill_an_added_column_with_one_value() -> None:
    five, other = step(definition(), filled_by("5")), of_other_table(definition(), filled_by("5"))
    assert require_one_fill([[five], [other]]) == ""
    expected = r"column n: rows of s1\.t_1 were filled with '5', rows of s2\.t_2 with '6'; the target"
    with pytest.raises(Conflict, match=expected):
        require_one_fill([[five], [other], [of_other_table(definition(), filled_by("6"))]])
    # NULL is a value too.
    with pytest.raises(Conflict, match=r"rows of s1\.t_1 were filled with '5', rows of s2\.t_2 with None"):
        require_one_fill([[five], [of_other_table(definition(), filled_by(None))]])


def test_fill_value_that_is_the_time_of_the_ddl_is_reported() -> None:
    now = [
        definition(col("n", t.DATETIME, origin_default=f"2026-11-23 10:00:0{second}", default="current_timestamp"))
        for second in range(2)
    ]
    said = require_one_fill([[step(definition(), now[0])], [of_other_table(definition(), now[1])]])
    assert said == "column n: rows of s1.t_1 and s2.t_2 have the time of their own DDL, but one time at the target"


RENAMED, CHANGED = "ALTER TABLE t RENAME COLUMN m TO n", "ALTER TABLE t CHANGE COLUMN m n BIGINT"
FORMER = definition(col("m", t.LONG))


@pytest.mark.parametrize(
    ("before", "other", "sql"),
    [
        (FORMER, filled_by("6"), RENAMED),
        # With another type it has another id.
        (FORMER, with_id(9, col("n", t.LONGLONG, origin_default="6")), CHANGED),
        # The column existed before, with another id.
        (filled_by("6"), with_id(9, col("n", t.LONGLONG, origin_default="6")), "ALTER TABLE t MODIFY COLUMN n BIGINT"),
        (definition(), filled_by("6", generated_expr_string="id", generated_stored=True), "ALTER TABLE t ADD COLUMN n"),
    ],
    ids=["renamed", "changed to another type", "type modified", "generated"],
)
def test_only_an_added_column_is_filled(before: TableDef, other: TableDef, sql: str) -> None:
    five = step(definition(), filled_by("5"))
    assert require_one_fill([[five], [of_other_table(before, other, sql)]]) == ""
    assert require_one_fill([[of_other_table(before, other, sql)], [five]]) == ""
