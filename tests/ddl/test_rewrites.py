"""Which DDL changes rows by itself, judged only by the definitions before and after it."""

from __future__ import annotations

import pytest
from support.tabledefs import col, primary, table

from binlake.ddl.definitions import LandedDdl
from binlake.ddl.rewrites import find_rewritten_tables
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide

ID, V = col("id"), col("v", t.VARCHAR, flen=20)


def build_table(*columns: object, name: str = "a", ident: int = 100, parts: tuple[int, ...] = ()) -> TableDef:
    more = {"partition": {"definitions": [{"id": part} for part in parts]}} if parts else {}
    return table(name, ID, *columns, keys=(primary("id"),), id=ident, **more)  # type: ignore[arg-type]


def ddl(before: TableDef | None, after: TableDef | None, ts: int = 5, decision: str = "apply") -> LandedDdl:
    sides = [DdlSide((), () if side is None else (side,)) for side in (before, after)]
    return LandedDdl(ts, ts, ts - 1, 1, 1, 12, "d", "a", "q", "q", decision, "", *sides)


OLD = build_table(V)
CASES = {
    "another type": (OLD, build_table(col("v", t.LONG)), True),
    "a shorter text": (OLD, build_table(col("v", t.VARCHAR, flen=2)), True),
    "fewer fractional digits": (
        build_table(col("w", t.DATETIME, decimal=6)),
        build_table(col("w", t.DATETIME, decimal=0)),
        True,
    ),
    "timestamp to datetime": (build_table(col("w", t.TIMESTAMP)), build_table(col("w", t.DATETIME)), True),
    "another charset": (OLD, build_table(col("v", t.VARCHAR, flen=20, charset="latin1")), True),
    "no more NULL": (OLD, build_table(col("v", t.VARCHAR, flen=20, not_null=True)), True),
    "renamed and retyped": (OLD, build_table(col("w", t.LONG)), True),
    "renamed": (OLD, build_table(col("w", t.VARCHAR, flen=20)), False),
    "a column that is filled": (OLD, build_table(V, col("w", t.JSON, not_null=True)), True),
    "a column with a default": (OLD, build_table(V, col("w", origin_default="7")), True),
    "a column of NULL": (OLD, build_table(V, col("w")), False),
    "a stored generated column": (
        OLD,
        build_table(V, col("w", generated_expr_string="`id`", generated_stored=True)),
        True,
    ),
    "a virtual column": (OLD, build_table(V, col("w", generated_expr_string="`id`")), False),
    "a column less": (build_table(V, col("w")), OLD, False),
    "truncated": (OLD, build_table(V, ident=101), True),
    "a partition less": (build_table(V, parts=(1, 2)), build_table(V, parts=(2,)), True),
    "a partition emptied": (build_table(V, parts=(1, 2)), build_table(V, parts=(3, 2)), True),
    "a partition more": (build_table(V, parts=(1,)), build_table(V, parts=(1, 2)), False),
    "created": (None, OLD, False),
    "dropped": (OLD, None, False),
    "another name": (OLD, build_table(V, name="b"), False),
}


@pytest.mark.parametrize("case", CASES)
def test_effect_of_a_ddl_on_rows_follows_from_the_definitions(case: str) -> None:
    before, after, changes = CASES[case]
    assert bool(find_rewritten_tables([ddl(before, after)])) is changes


def test_mark_follows_the_table_to_the_windows_end() -> None:
    longer = build_table(col("v", t.VARCHAR, flen=40))
    renamed = build_table(col("v", t.VARCHAR, flen=40), name="b")
    history = [ddl(OLD, longer, 5), ddl(longer, renamed, 6)]
    assert find_rewritten_tables(history) == {("d", "b"): 5}
    assert find_rewritten_tables([*history, ddl(renamed, None, 7)]) == {}


def test_ddl_not_run_at_the_target_is_not_checked() -> None:
    assert find_rewritten_tables([ddl(OLD, build_table(col("v", t.LONG)), decision="skip")]) == {}
    assert find_rewritten_tables([ddl(OLD, build_table(col("v", t.LONG)), decision="replaced")]) == {("d", "a"): 5}
