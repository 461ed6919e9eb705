"""Every kind of DDL job (docs/understand/schema.md), compared with a real TiDB's recordings or handwritten results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.tidb_json import column, db_info, index, job, table_info

from binlake.ddl.ddls import plan_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.errors import SchemaError
from binlake.rows.schema import Action, DdlJob, JobState, SchemaState, WindowDdl, WindowSchemas
from binlake.rows.schema.job import UNSUPPORTED
from binlake.rules import Rules
from binlake.testkit.captures.capture import Capture, StateAt
from binlake.wire import binlog_pb2 as pb

ROOT = Path(__file__).resolve().parents[3]
T = table_info(10, "t", [column(1, "id"), column(2, "v")])


@dataclass(frozen=True)
class Recorded:
    """A capture's DDL binlogs, its (commit_ts, job) by version, and the source's states by commit_ts."""

    logged: list[WindowDdl]
    placed: list[tuple[int, DdlJob]]
    states: list[StateAt]

    def planned(self) -> list[LandedDdl]:
        return plan_ddls(SchemaState(), self.logged, self.placed, Rules())

    def of(self, action: Action) -> list[LandedDdl]:
        return [ddl for ddl in self.planned() if ddl.action == action]

    def walk(self) -> Iterator[tuple[StateAt, SchemaState]]:
        """Each recorded state with the fold up to its commit_ts."""
        state, at = SchemaState(), 0
        for shown in self.states:
            while at < len(self.placed) and self.placed[at][0] <= shown.commit_ts:
                state, at = state.apply(self.placed[at][1]), at + 1
            yield shown, state


@pytest.fixture(scope="module")
def ddl() -> Recorded:
    """The capture with 58 of the 71 kinds of jobs."""
    capture = Capture(ROOT / "tests" / "captures" / "ddl")
    found = [b for b in map(pb.Binlog.FromString, capture.read_binlogs()) if b.tp == pb.Commit and b.ddl_job_id]
    logged = [WindowDdl(b.commit_ts, b.start_ts, b.ddl_job_id, b.ddl_schema_state, b.ddl_query.decode()) for b in found]
    places = {b.job_id: b.commit_ts for b in logged if b.schema_state != 1}
    jobs = [DdlJob.parse(text) for text in capture.read_job_texts()]
    return Recorded(logged, [(places.get(j.id, j.finished_ts), j) for j in jobs], list(capture.read_states()))


def test_schema_matches_the_source_at_every_recorded_state(ddl: Recorded) -> None:  # S0-60, S0-61, S4-23
    compared: Counter[str] = Counter()
    for shown, state in ddl.walk():
        if shown.tables is not None:
            own = {(t.db, t.name, t.kind) for t in state.list_tables() if t.db in set(shown.databases or ())}
            kinds = {"BASE TABLE": "table", "VIEW": "view", "SEQUENCE": "sequence"}
            assert own == {(db, name, kinds[kind]) for db, name, kind in shown.tables}, shown.step
            compared["lists"] += 1
        for content in shown.contents:
            table = state.find(content["schema"], content["name"])
            if content.get("absent"):
                assert table is None, (shown.step, content["table"])
                continue
            assert table is not None, (shown.step, content["table"])
            if table.kind == "table":
                assert [c.name for c in table.columns] == content["columns"], (shown.step, content["table"])
                keys = re.findall(r"^  (?:PRIMARY|UNIQUE) KEY", content["create"], re.MULTILINE)
                assert len(table.list_unique_keys()) == len(keys), (shown.step, content["create"])
            compared["tables"] += 1
    assert compared["lists"] >= 4
    assert compared["tables"] > 200


def test_every_recorded_row_names_a_known_table(ddl: Recorded) -> None:  # S0-60, R-19
    capture = Capture(ROOT / "tests" / "captures" / "ddl")
    places = {m.start_ts: m.commit_ts for m in map(pb.Binlog.FromString, capture.read_binlogs()) if m.tp == pb.Commit}
    dml = [m for m in map(pb.Binlog.FromString, capture.read_binlogs()) if m.prewrite_value and m.start_ts in places]
    versions = [(places[m.start_ts], pb.PrewriteValue.FromString(m.prewrite_value)) for m in dml]
    jobs = {job.id: job for _, job in ddl.placed}
    logged = [replace(b, job=jobs.get(b.job_id)) for b in ddl.logged]
    schemas = WindowSchemas(SchemaState(), logged)
    late = 0
    for commit_ts, value in versions:
        for mutation in value.mutations:
            state = schemas.find_schema_at(commit_ts)
            known = state.find_table(mutation.table_id) is not None
            late += not known
            assert known or state.is_gone(mutation.table_id), (commit_ts, mutation.table_id)
    assert len(versions) > 500
    assert late, "a DML after its TRUNCATE (tidb-binlog 1.14 point 14) is in this capture"


@pytest.mark.parametrize(
    "action", [Action.ADD_COLUMN, Action.ADD_INDEX, Action.MODIFY_COLUMN, Action.MULTI_SCHEMA_CHANGE]
)
def test_rolled_back_job_is_logged_but_not_applied(ddl: Recorded, action: Action) -> None:  # tidb-binlog 1.14 (8)
    failed = [d for d in ddl.of(action) if d.reason == "the job was rolled back or cancelled"]
    assert failed
    assert all(d.before.tables == d.after.tables == () and d.decision == "skip" for d in failed)
    states = {job.id: job.state for _, job in ddl.placed}
    assert {states[d.job_id] for d in failed} == {JobState.ROLLBACK_DONE}


def test_unreplicated_actions_are_skipped_with_a_reason(ddl: Recorded) -> None:  # tidb-binlog 5.3
    told = {d.reason for d in ddl.planned() if d.action in UNSUPPORTED}
    assert told == {f"{Action(a).label} is not replicated" for a in {d.action for d in ddl.planned()} & UNSUPPORTED}
    assert len(told) == 11


@pytest.mark.parametrize("action", sorted(UNSUPPORTED))
def test_action_irrelevant_for_targets_changes_only_the_version(action: Action) -> None:
    state = base().apply(job(action, 9, info=table_info(10, "wrong", [])))
    assert (state.version, [t.name for t in state.list_tables()]) == (9, ["t"])


def base(*more: DdlJob) -> SchemaState:
    """Database test with table t at version 2, then `more`."""
    first = [job(Action.CREATE_SCHEMA, 1, db=db_info(2, "test")), job(Action.CREATE_TABLE, 2, info=T)]
    return SchemaState().fold((j.schema_version * 10, j) for j in [*first, *more])


@pytest.mark.parametrize(
    ("action", "info"),
    [
        (Action.TABLE_CHARSET, {**T, "charset": "latin1", "collate": "latin1_bin"}),
        (Action.REPAIR_TABLE, {**T, "comment": "repaired"}),
        (Action.ADD_COLUMNS, table_info(10, "t", [column(1, "id"), column(2, "v"), column(3, "a"), column(4, "b")])),
        (Action.DROP_COLUMNS, table_info(10, "t", [column(1, "id")])),
        (Action.DROP_INDEXES, {**T, "index_info": []}),
        (Action.STATS_OPTIONS, {**T, "comment": "sampled"}),
        (99, {**T, "comment": "of tomorrow"}),
    ],
)
def test_action_with_a_definition_replaces_it(action: int, info: dict[str, object]) -> None:
    started = base(job(Action.ADD_INDEX, 3, info={**T, "index_info": [index(1, "i", [("v", -1)])]}))
    table = started.apply(job(action, 4, info=info)).find_table(10)
    assert table is not None
    assert table.raw == info


def test_unknown_action_without_a_definition_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"unknown kind 99 contains no table definition.*schema_version=4.*Hint"):
        base().apply(job(99, 4))


def window(*jobs: DdlJob) -> list[LandedDdl]:
    """The window after `base` whose DDLs are `jobs`, each logged at ten times its version."""
    placed = [(j.schema_version * 10, j) for j in jobs]
    logged = [WindowDdl(ts, ts - 1, j.id, 5, j.query) for ts, j in placed]
    return plan_ddls(base(), logged, placed, Rules())


def test_flashback_cluster_stops_a_window_but_not_a_later_start() -> None:
    flashback = job(Action.FLASHBACK_CLUSTER, 4, query="FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'")
    with pytest.raises(SchemaError, match=r"FLASHBACK CLUSTER.*commit_ts=40.*Hint: start a new replication"):
        window(flashback)
    assert base(flashback).version == 4
    refused = job(Action.FLASHBACK_CLUSTER, 4, state=int(JobState.CANCELLED))
    assert [d.reason for d in window(refused)] == ["the job was rolled back or cancelled"]


def test_batch_create_is_one_ddl_for_all_tables() -> None:
    infos = [table_info(20, "a", T["cols"]), table_info(21, "b", T["cols"])]
    (made,) = window(job(Action.CREATE_TABLES, 4, many=infos, query="CREATE TABLE `a`(x INT);CREATE TABLE `b`(x INT);"))
    assert (made.decision, made.touched) == ("apply", ["test.a", "test.b"])


def test_page_lists_every_action_and_existing_tests() -> None:
    page = (ROOT / "docs" / "understand" / "schema.md").read_text()
    numbers = {int(n) for n in re.findall(r"^\| (\d+) ", page, re.MULTILINE)}
    assert numbers == {int(action) for action in Action}
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []
