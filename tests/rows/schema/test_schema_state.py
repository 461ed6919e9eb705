"""The schema as a fold of DDL jobs: each action, which jobs take effect, and the snapshot rows."""

from __future__ import annotations

import pickle
import random
import tracemalloc
from pathlib import Path

import pytest
from support.jobhistory import in_version_order
from support.tidb_json import column, db_info, job, table_info

from binlake.errors import SchemaError
from binlake.rows.schema import Action, DdlJob, JobState, SchemaState
from binlake.rows.schema.change import rename_pairs
from binlake.testkit.captures.capture import Capture

CAPTURES = Path(__file__).parents[2] / "captures"
T = table_info(10, "t", [column(1, "id"), column(2, "v")])


def start(*jobs: DdlJob) -> SchemaState:
    """Databases test (2) and other (3), table test.t (10) at version 3, then `jobs`."""
    first = [
        job(Action.CREATE_SCHEMA, 1, db=db_info(2, "test")),
        job(Action.CREATE_SCHEMA, 2, db=db_info(3, "other"), schema_id=3),
        job(Action.CREATE_TABLE, 3, info=T),
    ]
    return SchemaState().fold((j.schema_version * 10, j) for j in [*first, *jobs])


def names(state: SchemaState) -> dict[str, int]:
    return {f"{t.db}.{t.name}": t.id for t in state.list_tables()}


def test_a_new_cluster_has_the_mysql_database() -> None:  # tidb-binlog 5.4
    assert [(d.id, d.name) for d in SchemaState().list_databases()] == [(1, "mysql")]


def test_a_table_is_found_by_id_and_by_name_in_any_case() -> None:
    state = start()
    table = state.find("TEST", "T")
    assert table is not None
    assert table is state.find_table(10)
    assert (table.db, table.name, [c.name for c in table.columns]) == ("test", "t", ["id", "v"])
    assert state.version == 3
    assert state.commit_ts == 30
    db = state.find_database("Test")
    assert db is not None
    assert db.id == 2


def test_apply_does_not_change_the_former_state() -> None:
    state = start()
    after = state.apply(job(Action.DROP_TABLE, 4, table_id=10), 44)
    assert state.find_table(10) is not None
    assert after.find_table(10) is None
    assert after.find("test", "t") is None
    assert after.commit_ts == 44


def test_other_actions_replace_the_definition() -> None:
    wider = table_info(10, "t", [column(1, "id"), column(2, "v"), column(3, "c", origin_default="7")])
    table = start(job(Action.ADD_COLUMN, 4, info=wider)).find_table(10)
    assert table is not None
    assert [c.name for c in table.columns] == ["id", "v", "c"]


def test_truncate_gives_a_new_id_and_remembers_the_old() -> None:  # tidb-binlog 1.14 point 14
    state = start(job(Action.TRUNCATE_TABLE, 4, info={**T, "id": 11}, table_id=10))
    assert names(state) == {"test.t": 11}
    assert state.is_gone(10)
    assert not state.is_gone(11)


def test_rename_may_move_to_another_database() -> None:
    state = start(job(Action.RENAME_TABLE, 4, info=table_info(10, "u", T["cols"]), schema_id=3))
    assert names(state) == {"other.u": 10}
    assert state.find("test", "t") is None


def test_rename_tables_swaps_names() -> None:  # tidb-binlog 1.14 point 4
    second = job(Action.CREATE_TABLE, 4, info=table_info(20, "u", T["cols"]))
    infos = [table_info(i, n, T["cols"]) for i, n in ((10, "u"), (20, "t"), (10, "u"))]
    swap = "RENAME TABLE `t` TO `tmp`, `u` TO `t`, `tmp` TO `u`"
    state = start(second, job(Action.RENAME_TABLES, 5, many=infos, query=swap, info=infos[0]))
    assert names(state) == {"test.u": 10, "test.t": 20}
    assert [state.find("test", n).id for n in ("u", "t")] == [10, 20]  # type: ignore[union-attr]


def test_rename_tables_takes_the_target_database_from_the_text() -> None:
    second = job(Action.CREATE_TABLE, 4, info=table_info(20, "u", T["cols"]))
    infos = [table_info(10, "x", T["cols"]), table_info(20, "t", T["cols"])]
    text = "RENAME TABLE t TO `other` . x, test.u TO t"
    # The job's schema name does not help, because it may be any of them.
    rename = job(Action.RENAME_TABLES, 5, many=infos, query=text, info=infos[0], schema_name="other")
    assert names(start(second, rename)) == {"other.x": 10, "test.t": 20}


def test_rename_names_with_unusual_quotes() -> None:
    assert rename_pairs("rename table `a``b`.`c,d` to `TO`.x , e to `f`") == [
        (("a`b", "c,d"), ("TO", "x")),
        (("", "e"), ("", "f")),
    ]


def partitioned(table_id: int, *parts: int) -> dict[str, object]:
    definitions = [{"id": p, "name": {"O": f"p{n}", "L": f"p{n}"}} for n, p in enumerate(parts)]
    return table_info(table_id, "p", T["cols"], partition={"definitions": definitions})


def test_exchange_partition_swaps_ids() -> None:  # tidb-binlog 1.14 point 5
    state = start(
        job(Action.CREATE_TABLE, 4, info=partitioned(30, 31, 32)),
        job(Action.EXCHANGE_PARTITION, 5, info=partitioned(30, 31, 10), table_id=10),
    )
    assert names(state) == {"test.p": 30, "test.t": 32}
    back = state.apply(job(Action.EXCHANGE_PARTITION, 6, info=partitioned(30, 31, 32), table_id=32))
    assert names(back) == {"test.p": 30, "test.t": 10}


def test_id_returned_by_exchange_partition_has_no_alias_after_a_drop() -> None:
    # Capture zones, table Tausch: rows after its TRUNCATE went to the partitioned table.
    state = start(
        job(Action.CREATE_TABLE, 4, info=partitioned(30, 31, 32)),
        job(Action.EXCHANGE_PARTITION, 5, info=partitioned(30, 31, 10), table_id=10),
        job(Action.EXCHANGE_PARTITION, 6, info=partitioned(30, 31, 32), table_id=32),
    )
    assert state.find_table(32) is state.find_table(30)
    emptied = state.apply(job(Action.TRUNCATE_TABLE, 7, info={**T, "id": 40}, table_id=10))
    assert emptied.find_table(10) is None
    assert emptied.is_gone(10)


def test_partition_by_redirects_late_changes_to_the_new_id() -> None:  # 1.14 point 6
    state = start(job(Action.PARTITION_BY, 4, info=table_info(40, "t", T["cols"]), table_id=10))
    assert names(state) == {"test.t": 40}
    assert state.find_table(10) is state.find_table(40)


def test_create_tables_adds_all_but_tidbs_system_tables() -> None:
    infos = [table_info(50, "a", T["cols"]), table_info(2**48 - 5, "sys", T["cols"])]
    assert names(start(job(Action.CREATE_TABLES, 4, many=infos))) == {"test.t": 10, "test.a": 50}


def test_a_drop_of_two_tables_is_two_jobs_with_one_text() -> None:  # R-28, tidb-binlog 1.14 point 11
    state = start(job(Action.CREATE_TABLE, 4, info=table_info(20, "u", T["cols"])))
    text = "DROP TABLE `t`, `u`"
    first = state.apply(job(Action.DROP_TABLE, 5, table_id=20, query=text))
    assert names(first) == {"test.t": 10}
    assert names(first.apply(job(Action.DROP_TABLE, 6, table_id=10, query=text))) == {}


def test_state_can_be_pickled() -> None:
    state = pickle.loads(pickle.dumps(start()))
    assert list(state.to_rows()) == list(start().to_rows())
    assert state.find("test", "t") is state.find_table(10)


def test_dropping_a_database_drops_its_tables() -> None:
    state = start(job(Action.DROP_SCHEMA, 4, db=db_info(2, "test")))
    assert names(state) == {}
    assert state.find_database("test") is None
    assert state.is_gone(10)


@pytest.mark.parametrize("args", [[{"RecoverTabsInfo": [{"TableInfo": T}]}, 1], [{"RecoverTabsInfo": None}, 1]])
def test_flashback_database_restores_its_tables(args: list[object]) -> None:
    drop = job(Action.DROP_SCHEMA, 4, db=db_info(2, "test"))
    back = job(Action.RECOVER_SCHEMA, 5, db=db_info(2, "again"), raw_args=args)
    state = start(drop, back)
    assert names(state) == {"again.t": 10}
    assert not state.is_gone(10)


def test_changing_the_charset_of_a_database_keeps_its_tables() -> None:  # tidb-binlog 5.4, #764
    state = start(job(Action.SCHEMA_CHARSET, 4, db={**db_info(2, "test"), "charset": "latin1"}))
    assert names(state) == {"test.t": 10}
    assert state.find_database("test").charset == "latin1"  # type: ignore[union-attr]


def test_a_replaced_view_loses_its_old_id() -> None:
    view = table_info(60, "v", T["cols"], view={"x": 1})
    state = start(job(Action.CREATE_VIEW, 4, info=view), job(Action.CREATE_VIEW, 5, info={**view, "id": 61}))
    assert names(state) == {"test.t": 10, "test.v": 61}
    assert state.find_table(61).kind == "view"  # type: ignore[union-attr]


@pytest.mark.parametrize("state", [s for s in JobState if s not in (JobState.DONE, JobState.SYNCED)])
def test_unsuccessful_job_changes_nothing(state: JobState) -> None:  # S0-61
    before = start()
    after = before.apply(job(Action.DROP_TABLE, 4, table_id=10, state=int(state)))
    assert after.find_table(10) is before.find_table(10)
    assert after.version == 3


def test_a_job_without_version_or_already_applied_changes_nothing() -> None:
    state = start()
    for version in (0, 2, 3):
        assert state.apply(job(Action.DROP_TABLE, version, table_id=10)).find_table(10) is not None


def test_unsupported_actions_change_only_the_version() -> None:
    state = start().apply(job(Action.CREATE_PLACEMENT, 4))
    assert state.version == 4
    assert names(state) == {"test.t": 10}


def test_jobs_without_definitions_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"add column\) lacks TableInfo.*job_id=1004"):
        start(job(Action.ADD_COLUMN, 4))
    with pytest.raises(SchemaError, match="unknown kind 99"):
        start(job(99, 4))
    with pytest.raises(SchemaError, match=r"database that the schema history does not have.*schema_id=77"):
        start(job(Action.CREATE_TABLE, 4, info=table_info(70, "x", []), schema_id=77))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"id":1,"type":"x","state":6,"schema_id":1,"table_id":1}'])
def test_unreadable_job_is_an_error(text: str) -> None:
    with pytest.raises(SchemaError, match="cannot be read"):
        DdlJob.parse(text)


def test_a_job_keeps_its_exact_text() -> None:
    text = '{"id": 1,  "type":3,"state":6,"schema_id":2,"table_id":9}'
    assert DdlJob.parse(text).text == text


def history() -> list[DdlJob]:
    """Create, add column, rename, truncate, drop, and one rolled-back job."""
    wide = table_info(10, "t", [column(1, "id"), column(2, "v"), column(3, "c")])
    return [
        job(Action.CREATE_SCHEMA, 1, db=db_info(2, "test")),
        job(Action.CREATE_TABLE, 2, info=T),
        job(Action.ADD_COLUMN, 3, info=wide),
        job(Action.ADD_INDEX, 4, info={**T, "name": {"O": "wrong", "L": "wrong"}}, state=3),
        job(Action.RENAME_TABLE, 5, info={**wide, "name": {"O": "u", "L": "u"}}),
        job(Action.TRUNCATE_TABLE, 6, info={**wide, "id": 12, "name": {"O": "u", "L": "u"}}, table_id=10),
        job(Action.DROP_TABLE, 7, table_id=12),
    ]


def test_snapshots_of_a_shuffled_history_at_five_moments() -> None:  # S0-61
    jobs = history()
    random.Random(7).shuffle(jobs)
    ordered = [(j.finished_ts, j) for j in in_version_order(jobs)]
    seen = {ts: SchemaState().fold(one for one in ordered if one[0] <= ts) for ts in (25, 35, 45, 55, 65, 75)}
    assert [names(s) for s in seen.values()] == [
        {"test.t": 10}, {"test.t": 10}, {"test.t": 10}, {"test.u": 10}, {"test.u": 12}, {},
    ]  # fmt: skip
    assert [len(t.columns) for s in seen.values() for t in s.list_tables()] == [2, 3, 3, 3, 3]


@pytest.mark.parametrize("name", ["bank", "keys", "shard", "sysbench_like"])
def test_fold_of_a_capture_has_the_source_tables(name: str) -> None:
    capture = Capture(CAPTURES / name)
    state = SchemaState().fold((0, DdlJob.parse(text)) for text in capture.read_job_texts())
    last = [s for s in capture.read_states() if s.tables is not None][-1]
    shown = {(db, table) for db, table, _ in last.tables or ()}
    assert {(t.db, t.name) for t in state.list_tables() if t.db in set(last.databases or ())} == shown


def test_snapshot_rows_restore_the_state() -> None:
    state = start(
        job(Action.CREATE_TABLE, 4, info=partitioned(30, 31, 32)),
        job(Action.EXCHANGE_PARTITION, 5, info=partitioned(30, 31, 10), table_id=10),
        job(Action.DROP_SCHEMA, 6, db=db_info(2, "test")),
    )
    rows = list(state.to_rows())
    again = SchemaState.from_rows(reversed(rows))
    assert sorted(again.to_rows()) == sorted(rows)
    assert (again.version, again.commit_ts, again.is_gone(30)) == (6, 60, True)
    flashed = job(Action.RECOVER_SCHEMA, 7, db=db_info(2, "back"), raw_args=[{"RecoverTabsInfo": None}])
    assert names(again.apply(flashed)) == {"back.t": 32, "back.p": 30}


@pytest.mark.parametrize(
    "rows", [[], [("state", 0, "x")], [("state", 0, "1")], [("moon", 1, "{}"), ("state", 0, "{}")]]
)
def test_incomplete_snapshot_is_an_error(rows: list[tuple[str, int, str]]) -> None:
    with pytest.raises(SchemaError, match="schema snapshot"):
        SchemaState.from_rows(rows)


@pytest.mark.long
def test_memory_depends_only_on_live_tables() -> None:  # S0-60, S0-61
    def endless(count: int) -> object:
        yield 1, job(Action.CREATE_SCHEMA, 1, db=db_info(2, "test"))
        for version in range(2, count):
            info = {**T, "id": version}
            yield version, job(Action.CREATE_TABLE if version == 2 else Action.TRUNCATE_TABLE, version, info=info,
                               table_id=version - 1)  # fmt: skip

    tracemalloc.start()
    state = SchemaState().fold(endless(6_000))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert names(state) == {"test.t": 5_999}
    assert peak < 3_000_000
