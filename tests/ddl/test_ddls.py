"""The DDL of a window: applied DDL open a segment, skipped ones name the rule; decoding follows all of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from binlake.config import Replication
from binlake.ddl.ddls import add_injections, build_window_schemas, plan_ddls
from binlake.dialect.collations import derive_bytewise_definitions
from binlake.dialect.replacement import Injection
from binlake.rows.schema import DdlJob, SchemaState, WindowDdl
from binlake.rows.schema.state import DdlSide
from binlake.rules import Rules
from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2

CAPTURES = Path(__file__).parent.parent / "captures"


def load(name: str) -> tuple[list[WindowDdl], list[tuple[int, DdlJob]]]:
    capture = Capture(CAPTURES / name)
    jobs = {job.id: job for job in (DdlJob.from_dict(raw) for raw in capture.read_jobs())}
    found = [binlog_pb2.Binlog.FromString(payload) for payload in capture.read_binlogs()]
    logged = [
        WindowDdl(b.commit_ts, b.start_ts, b.ddl_job_id, b.ddl_schema_state, b.ddl_query.decode())
        for b in found
        if b.tp == binlog_pb2.Commit and b.ddl_job_id > 0
    ]
    return logged, [(b.commit_ts, jobs[b.job_id]) for b in logged if b.schema_state != 1 and b.job_id in jobs]


@pytest.mark.parametrize(
    ("capture", "applied", "skipped"),
    [
        ("bank", 36, {"filtered": 49, "delete-only step of DROP COLUMN": 2}),
        ("shard", 42, {"filtered": 49, "delete-only step of DROP COLUMN": 4}),
    ],
)
def test_system_tables_and_intermediate_steps_are_skipped_by_reason(
    capture: str, applied: int, skipped: dict[str, int]
) -> None:
    binlogs, jobs = load(capture)
    planned = plan_ddls(SchemaState(), binlogs, jobs, Rules())
    assert Counter(ddl.reason for ddl in planned if ddl.reason) == skipped
    assert [ddl.segment for ddl in planned if not ddl.reason] == list(range(1, applied + 1))


def test_each_ddl_has_its_definitions_before_and_after() -> None:  # S0-64 R-18
    binlogs, jobs = load("shard")
    planned = plan_ddls(SchemaState(), binlogs, jobs, Rules())
    added = next(ddl for ddl in planned if "ADD COLUMN `note`" in ddl.query)
    (before,), (after,) = added.before.tables, added.after.tables
    assert set(after.columns) - set(before.columns) != set()
    assert [c.name for c in after.columns if c.name not in {b.name for b in before.columns}] == ["note"]
    assert added.touched == ["shard_2.t_1"]


def test_ddl_of_the_ignore_list_is_skipped_but_changes_the_schema() -> None:
    binlogs, jobs = load("shard")
    target = next(b for b in binlogs if "ADD COLUMN `note`" in b.query)
    planned = plan_ddls(SchemaState(), binlogs, jobs, Rules(), {target.commit_ts})
    assert next(d.reason for d in planned if d.commit_ts == target.commit_ts) == "ignore-txn-commit-ts"
    schemas = build_window_schemas(SchemaState(), binlogs, jobs)
    table = schemas.find_schema_at(target.commit_ts).find("shard_2", "t_1")
    assert table is not None
    assert table.find_column("note") is not None


def test_ddl_left_to_the_operator_opens_a_segment_but_a_filtered_one_does_not() -> None:
    binlogs, jobs = load("shard")
    named = next(b for b in binlogs if "ADD COLUMN `note`" in b.query)
    tables = Rules()
    plain = plan_ddls(SchemaState(), binlogs, jobs, tables)
    filtered = next(d for d in plain if d.reason == "filtered")
    planned = plan_ddls(SchemaState(), binlogs, jobs, tables, {named.commit_ts, filtered.commit_ts})
    assert [d.segment for d in planned] == [d.segment for d in plain]
    landed = {ddl.commit_ts: ddl for ddl in planned}
    assert landed[named.commit_ts].decision == "skip"
    assert landed[named.commit_ts].opens_segment
    assert not landed[filtered.commit_ts].opens_segment


def test_job_without_a_binlog_changes_the_schema_at_its_position_and_is_not_applied() -> None:
    binlogs, jobs = load("shard")
    lost = next(b for b in binlogs if "ADD COLUMN `note`" in b.query)
    planned = plan_ddls(SchemaState(), [b for b in binlogs if b is not lost], jobs, Rules())
    found = next(d for d in planned if d.job_id == lost.job_id)
    assert found.reason == "the source logged no binlog for it"
    assert found.commit_ts == lost.commit_ts


def test_ddl_with_rows_ahead_of_it_cuts_the_window_before_them() -> None:  # R-18, issue 13 points 4 and 5
    binlogs, jobs = load("ddl")
    dropped = next(b for b in binlogs if "DROP COLUMN `b`, DROP COLUMN `c`, ADD COLUMN `c2`" in b.query)
    job = next(job for _, job in jobs if job.id == dropped.job_id)
    planned = plan_ddls(SchemaState(), binlogs, jobs, Rules())
    own = next(ddl for ddl in planned if ddl.job_id == dropped.job_id)
    assert job.began_ts < job.ready_ts == own.since < own.commit_ts
    assert [ddl.since for ddl in planned] == sorted(ddl.since for ddl in planned)
    schemas = build_window_schemas(SchemaState(), binlogs, jobs)
    for ts, known in ((own.since - 1, False), (own.since, True)):
        definition = schemas.find_schema_at(ts).find_table(job.table_id)
        assert definition is not None
        assert any(column.name == "c2" for column in definition.columns) is known
    late = plan_ddls(SchemaState(), binlogs, jobs, Rules(), lo=own.since + 7)
    assert next(ddl.since for ddl in late if ddl.job_id == dropped.job_id) == own.since + 8


@pytest.mark.parametrize(("reason", "ahead"), [("", 1), ("sync-ddl", 1), ("filtered", 0)])
def test_injection_moves_only_before_rows_ahead_of_a_ddl_that_cuts_the_window(reason: str, ahead: int) -> None:
    # U-15: if nothing cuts the window, the injection stays after everything committed before its commit_ts
    binlogs, jobs = load("shard")
    last = plan_ddls(SchemaState(), binlogs, jobs, Rules())[-1]
    ddl = replace(last, decision="skip" if reason else "apply", reason=reason)
    early = replace(ddl, since=ddl.commit_ts - 9)
    own = Injection(ddl.commit_ts - 2, "DROP TABLE x", "d")
    put = next(one for one in add_injections([early], [own], 0, ddl.commit_ts, 0) if one.decision == "injected")
    assert put.since == (early.since if ahead else own.commit_ts)


def test_ddl_keeps_its_sessions_time_zone_in_the_lake_and_through_routes() -> None:
    # from the job, or else from the configuration
    binlogs, jobs = load("shard")
    routes = [{"schema-pattern": "shard_1", "target-schema": "first"}]
    source = {"time-zone": "+02:00"}
    raw = {"name": "demo", "lake": {"path": "/x"}, "source": source, "routes": routes}
    planned = plan_ddls(SchemaState(), binlogs, jobs, Rules.of(Replication.model_validate(raw)))
    zones = {ddl.job_id: ddl.after.session.zone for ddl in planned if not ddl.reason}
    by_job = {job.id for _, job in jobs if (json.loads(job.text).get("reorg_meta") or {}).get("location")}
    assert by_job
    assert {zones[job] for job in zones if job not in by_job} == {"+02:00"}
    assert all(zones[job] and zones[job] != "+02:00" for job in zones if job in by_job)
    one = next(ddl for ddl in planned if not ddl.reason)
    assert DdlSide.from_json(one.after.to_json()).session == one.after.session
    assert derive_bytewise_definitions(one.after, "mariadb").session == one.after.session


def test_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="Mars/Olympus"):
        Replication.model_validate({"name": "demo", "lake": {"path": "/x"}, "source": {"time-zone": "Mars/Olympus"}})
