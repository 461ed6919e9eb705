"""Segments of a window: which DDL binlogs open a segment, and which schema belongs to a commit_ts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.tidb_json import column, db_info, job, table_info

from binlake.errors import SchemaError
from binlake.rows.schema import Action, DdlJob, SchemaState, WindowDdl, WindowSchemas, classify_ddl, sort_ddls
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.window import build_unknown_table_error, compute_effective_ts

NARROW = table_info(10, "t", [column(1, "id")])
KEYED = table_info(10, "t", [column(1, "id", flag=t.FLAG_NOT_NULL | t.FLAG_PRIMARY)], pk_is_handle=True)
WIDE = table_info(10, "t", [column(1, "id"), column(2, "c")])


def base() -> SchemaState:
    first = [job(Action.CREATE_SCHEMA, 1, db=db_info(2, "test")), job(Action.CREATE_TABLE, 2, info=NARROW)]
    return SchemaState().fold((0, j) for j in first)


def ddl(commit_ts: int, what: DdlJob | None, query: str = "ALTER TABLE t", schema_state: int = 5) -> WindowDdl:
    return WindowDdl(commit_ts, commit_ts - 1, what.id if what else 999, schema_state, query, what)


def columns(state: SchemaState) -> list[str]:
    table = state.find_table(10)
    assert table is not None
    return [c.name for c in table.columns]


def test_a_window_without_ddl_is_one_segment() -> None:
    schemas = WindowSchemas(base(), [])
    assert schemas.segments == 1
    assert schemas.find_segment(10**18) == 0


def test_each_ddl_opens_a_segment_at_its_own_commit_ts() -> None:  # S0-60, S0-64
    wide, narrow = job(Action.ADD_COLUMN, 3, info=WIDE), job(Action.DROP_COLUMN, 4, info=NARROW)
    schemas = WindowSchemas(base(), [ddl(200, narrow), ddl(100, wide)])
    assert [schemas.find_segment(ts) for ts in (99, 100, 199, 200, 201)] == [0, 1, 1, 2, 2]
    assert [columns(schemas.find_schema_of_segment(s)) for s in range(schemas.segments)] == [
        ["id"],
        ["id", "c"],
        ["id"],
    ]
    assert columns(schemas.find_schema_at(150)) == ["id", "c"]
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
    assert schemas.find_segment(79) == 0


def test_a_rolled_back_ddl_opens_a_segment_with_the_same_definitions() -> None:  # tidb-binlog 1.14 point 8
    failed = job(Action.ADD_INDEX, 3, info=WIDE, state=3)
    schemas = WindowSchemas(base(), [ddl(100, failed, schema_state=0)])
    assert schemas.segments == 2
    assert columns(schemas.find_schema_of_segment(1)) == ["id"]


def test_a_ddl_without_its_job_is_an_error() -> None:
    with pytest.raises(SchemaError, match=r"job of a DDL.*job_id=999 commit_ts=100.*Hint"):
        WindowSchemas(base(), [ddl(100, None)])


def test_unknown_table_error_contains_a_hint() -> None:
    with pytest.raises(SchemaError, match=r"table_id=11 commit_ts=5.*ignore-txn-commit-ts"):
        raise build_unknown_table_error(11, 5)


def test_a_query_that_only_looks_like_setval() -> None:
    assert classify_ddl("ALTER TABLE `select setval(` ADD c INT", 5) == "ddl"


def clauses(*times: tuple[int, int]) -> dict[str, object]:
    """The part of a job that contains (real_start_ts, snapshot_ver) of each of its clauses."""
    subs = [{"type": 5, "real_start_ts": began, "snapshot_ver": copied} for began, copied in times]
    return {"multi_schema_info": {"sub_jobs": subs}}


def test_row_that_may_have_seen_a_ddl_is_in_its_segment() -> None:  # multi-schema change, captures `ddl`, `zones`
    both = job(Action.MULTI_SCHEMA_CHANGE, 5, info=WIDE, start_ts=50, real_start_ts=60, **clauses((60, 0), (90, 0)))
    gone = job(Action.DROP_COLUMN, 8, info=NARROW, start_ts=150, real_start_ts=165)
    schemas = WindowSchemas(base(), [ddl(100, both), ddl(200, gone)])
    assert [schemas.find_segment(ts) for ts in (80, 89, 90, 100, 164, 165, 200)] == [0, 0, 1, 1, 1, 2, 2]
    assert columns(schemas.find_schema_at(90)) == ["id", "c"]
    assert [d.commit_ts for d in schemas.ddls] == [100, 200]


@pytest.mark.parametrize(
    ("action", "more", "since"),
    [
        (Action.DROP_COLUMN, {}, 110),
        (Action.DROP_INDEX, {}, 110),
        (Action.DROP_PRIMARY_KEY, {}, 110),
        (Action.REORGANIZE_PARTITION, {"snapshot_ver": 140}, 140),
        (Action.MULTI_SCHEMA_CHANGE, clauses((110, 150), (130, 0)), 150),
        (Action.MULTI_SCHEMA_CHANGE, {}, 110),
        (Action.ADD_COLUMN, {}, 200),
        (Action.ADD_INDEX, {"snapshot_ver": 140}, 200),
        (Action.MODIFY_COLUMN, {"snapshot_ver": 140}, 200),
        (Action.TRUNCATE_PARTITION, {}, 200),
        (Action.DROP_TABLE, {}, 200),
    ],
)
def test_ddl_is_placed_at_the_first_ts_visible_to_rows(action: Action, more: dict[str, object], since: int) -> None:
    found = job(action, 8, info=KEYED, start_ts=100, real_start_ts=110, **more)
    assert compute_effective_ts(found, 200) == since
    assert [one.compute_since_above(120) for one in sort_ddls(120, [ddl(200, found)])] == [max(since, 121)]
    assert compute_effective_ts(replace(found, state=3), 200) == 200


@pytest.mark.parametrize("action", [Action.REORGANIZE_PARTITION, Action.PARTITION_BY, Action.REMOVE_PARTITIONING])
def test_ddl_that_logs_twice_is_placed_at_its_first_step(action: Action) -> None:
    found = job(action, 8, info=NARROW, start_ts=100, real_start_ts=110, snapshot_ver=140)
    assert compute_effective_ts(found, 200) == 110
    # A job that was rolled back logged twice too; one that never took a step did not.
    assert compute_effective_ts(replace(found, state=3), 200) == 110
    assert compute_effective_ts(replace(found, state=3, schema_version=0), 200) == 200
    assert compute_effective_ts(replace(found, state=3, table_info=None), 200) == 200


def test_rolled_back_or_foreign_ddl_keeps_segments_sorted() -> None:  # issue 13 point 4
    other = table_info(20, "o", [column(1, "id")])
    begun = base().apply(job(Action.CREATE_TABLE, 3, info=other, schema_id=2))
    ahead = job(Action.MULTI_SCHEMA_CHANGE, 9, info=WIDE, real_start_ts=60)
    failed = job(Action.ADD_INDEX, 5, info=other, state=3)
    wider = table_info(20, "o", [column(1, "id"), column(2, "x")])
    beside = job(Action.ADD_COLUMN, 7, info=wider, schema_id=2)
    schemas = WindowSchemas(begun, [ddl(80, failed, schema_state=0), ddl(90, beside), ddl(100, ahead)])
    edges = [since for since, _, _ in schemas.iterate_spans()]
    assert edges == sorted(edges)
    assert [d.commit_ts for d in schemas.ddls] == [100, 80, 90]
    assert [columns(schemas.find_schema_at(ts)) for ts in (59, 60, 80, 95, 100)] == [["id"], *[["id", "c"]] * 4]
    places = [schemas.find_schema_at(ts).find_table(20) for ts in (60, 89, 90, 100)]
    assert [len(table.columns) for table in places if table] == [1, 1, 2, 2]
    assert schemas.find_schema_of_segment(schemas.segments - 1).version == 9
