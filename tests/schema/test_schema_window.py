"""Segments of a window: which DDL binlogs open one, and which schema a commit_ts finds."""

from __future__ import annotations

import pytest
from tidb_json import column, db_info, job, table_info

from binlake.errors import SchemaError
from binlake.schema import Action, DdlJob, SchemaState, WindowDdl, WindowSchemas, ddl_kind
from binlake.schema.window import unknown_table

NARROW = table_info(10, "t", [column(1, "id")])
WIDE = table_info(10, "t", [column(1, "id"), column(2, "c")])


def base() -> SchemaState:
    first = [job(Action.CREATE_SCHEMA, 1, db=db_info(2, "test")), job(Action.CREATE_TABLE, 2, info=NARROW)]
    return SchemaState().fold((0, j) for j in first)


def ddl(commit_ts: int, what: DdlJob | None, query: str = "ALTER TABLE t", schema_state: int = 5) -> WindowDdl:
    return WindowDdl(commit_ts, query, what.id if what else 999, schema_state, what)


def columns(state: SchemaState) -> list[str]:
    table = state.table(10)
    assert table is not None
    return [c.name for c in table.columns]


def test_a_window_without_ddl_is_one_segment() -> None:
    schemas = WindowSchemas(base(), [])
    assert schemas.segments == 1
    assert schemas.segment_of(10**18) == 0


def test_each_ddl_opens_a_segment_at_its_own_commit_ts() -> None:  # S0-60, S0-64
    wide, narrow = job(Action.ADD_COLUMN, 3, info=WIDE), job(Action.DROP_COLUMN, 4, info=NARROW)
    schemas = WindowSchemas(base(), [ddl(200, narrow), ddl(100, wide)])
    assert [schemas.segment_of(ts) for ts in (99, 100, 199, 200, 201)] == [0, 1, 1, 2, 2]
    assert [columns(schemas.at(s)) for s in range(schemas.segments)] == [["id"], ["id", "c"], ["id"]]
    assert columns(schemas.place(150)) == ["id", "c"]
    assert [d.commit_ts for d in schemas.ddls] == [100, 200]


def test_extra_binlogs_never_open_a_segment() -> None:  # tidb-binlog 1.11
    drop = job(Action.DROP_COLUMN, 3, info=NARROW)
    ddls = [
        ddl(50, drop, schema_state=1),
        ddl(60, None, "SELECT SETVAL(`d`.`s`, 5)"),
        ddl(70, None, "select setval (`s`, 5)"),
        ddl(80, drop, schema_state=0),
    ]
    schemas = WindowSchemas(base(), ddls)
    assert [d.kind for d in ddls] == ["delete-only", "setval", "setval", "ddl"]
    assert schemas.segments == 2
    assert schemas.segment_of(79) == 0


def test_a_rolled_back_ddl_opens_a_segment_with_the_same_definitions() -> None:  # tidb-binlog 1.14 point 8
    failed = job(Action.ADD_INDEX, 3, info=WIDE, state=3)
    schemas = WindowSchemas(base(), [ddl(100, failed, schema_state=0)])
    assert schemas.segments == 2
    assert columns(schemas.at(1)) == ["id"]


def test_a_ddl_without_its_job_is_an_error() -> None:
    with pytest.raises(SchemaError, match=r"job of a DDL.*job_id=999 commit_ts=100.*Hint"):
        WindowSchemas(base(), [ddl(100, None)])


def test_an_unknown_table_is_an_error_that_names_the_ways_on() -> None:
    with pytest.raises(SchemaError, match=r"table_id=11 commit_ts=5.*ignore-txn-commit-ts"):
        raise unknown_table(11, 5)


def test_a_query_that_only_looks_like_setval() -> None:
    assert ddl_kind("ALTER TABLE `select setval(` ADD c INT", 5) == "ddl"


def test_a_row_that_has_seen_a_ddl_is_in_its_segment() -> None:  # multi-schema change, capture `ddl`
    ddls = [ddl(100, job(Action.MULTI_SCHEMA_CHANGE, 5, info=WIDE)), ddl(200, job(Action.DROP_COLUMN, 8, info=NARROW))]
    schemas = WindowSchemas(base(), ddls, first_seen={2: 10, 4: 80, 5: 90, 6: 95, 7: 150, 8: 210})
    assert [schemas.segment_of(ts) for ts in (80, 89, 90, 100, 199, 200)] == [0, 0, 1, 1, 1, 2]
    assert columns(schemas.place(90)) == ["id", "c"]
    assert [d.commit_ts for d in schemas.ddls] == [100, 200]
