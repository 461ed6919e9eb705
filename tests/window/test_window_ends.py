"""A window may end at any commit_ts near a DDL that rows run ahead of: the target is the same (issue 13 points 4, 5).

Uses genuine bytes (capture `zones_unique`: writers try duplicates while unique keys are dropped), the pipeline's
decoder, net changes and DDL, and an in-memory target that enforces unique keys as REPLACE does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
from support.examples import spread

from binlake.changes.net import RowEvent, compute_net_changes
from binlake.ddl.ddls import build_window_schemas, plan_ddls
from binlake.ddl.definitions import LandedDdl, Segments, WindowDefinitions, derive_key_defaults
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import SchemaState, TableDef
from binlake.rows.schema.window import compute_effective_ts
from binlake.testkit.captures.capture import Capture
from deploy.local.commitlog import RULES, CommitLog, read_log
from deploy.local.direct import decode_changes

CAPTURES = Path(__file__).parents[1] / "captures"
TABLE = ("Betrieb", "Eindeutig")
Row = dict[str, str | None]


@cache
def log() -> CommitLog:
    return read_log(Capture(CAPTURES / "zones_unique"))


@dataclass
class Target:
    """One table: rows by primary key; a written row removes those with its value in another unique key."""

    rows: dict[str | None, Row] = field(default_factory=dict)

    def alter(self, ddl: LandedDdl) -> None:
        """Add columns with the default for old rows; a unique key may be added only if no two rows share it."""
        if not ddl.after.tables:
            return
        table = ddl.after.tables[0]
        filled = {column.name: derive_filled_text(column) for column in table.row_columns}
        self.rows = {key: {**filled, **row} for key, row in self.rows.items()}
        for key in keys_of(table):
            taken = [values for row in self.rows.values() if None not in (values := key_of(row, key))]
            assert len(taken) == len(set(taken)), f"{ddl.query}: duplicates"

    def write(self, table: TableDef, rows: Sequence[Row]) -> None:
        """REPLACE."""
        for key in keys_of(table):
            holders = {key_of(row, key): number for number, row in self.rows.items()}
            for row in rows:
                values = key_of(row, key)
                other = None if None in values else holders.get(values)
                if other is not None and other != row["id"]:
                    self.rows.pop(other, None)
                holders[values] = row["id"]
        self.rows.update((row["id"], dict(row)) for row in rows)


def keys_of(table: TableDef) -> list[tuple[str, ...]]:
    return [tuple(c.name for c in key.columns) for key in table.list_unique_keys() if not key.primary]


def key_of(row: Row, key: Sequence[str]) -> tuple[str | None, ...]:
    # utf8mb4_general_ci for the capture's ASCII values
    return tuple(value.lower() if (value := row[name]) else value for name in key)


@dataclass
class Replay:
    """Windows one after the other up to `at`."""

    target: Target = field(default_factory=Target)
    state: SchemaState = field(default_factory=SchemaState)
    at: int = 0

    def through(self, *ends: int) -> dict[str | None, Row]:
        """The rows after windows that end at `ends`; the Replay itself does not change."""
        found = replace(self, target=Target(dict(self.target.rows)))
        for end in ends:
            found.advance(end)
        return found.target.rows

    def advance(self, hi: int) -> None:
        lo, state = self.at, self.state
        ddls = [ddl for ddl in log().ddls if lo < ddl.commit_ts <= hi]
        jobs = [(ts, job) for ts, job in log().jobs if lo < ts <= hi]
        planned = plan_ddls(state, ddls, jobs, RULES, lo=lo)
        lines = planned
        cuts = [ddl for ddl in planned if ddl.opens_segment]
        segments = Segments(lo, hi, tuple(ddl.since for ddl in cuts))
        definitions = WindowDefinitions(state, lines)
        events = decode_changes(
            [row for row in log().rows if lo < row[0] <= hi], build_window_schemas(state, ddls, jobs, lo)
        )
        for number in range(len(cuts) + 1):
            if number:
                self.target.alter(cuts[number - 1])
            since, until = segments.find_bounds(number)
            own = [event for event in events.get(TABLE, []) if since <= event.commit_ts < until]
            if own:
                self.write(own, definitions.require_definition_within(*TABLE, since, until))
        self.at, self.state = hi, state.fold(jobs)

    def write(self, events: Sequence[RowEvent], table: TableDef) -> None:
        net = compute_net_changes(events, table.find_identity(), derive_key_defaults(table))
        for change in (one for one in net if one.op == "delete"):
            self.target.rows.pop((change.before or {})["id"], None)
        self.target.write(table, [dict(one.after or {}) for one in net if one.op != "delete"])


def around(job_id: int) -> Iterator[int]:
    """Every commit_ts from a few rows before a job's first step to a few after its binlog, except those inside it."""
    commit_ts, job = next((ts, job) for ts, job in log().jobs if job.id == job_id)
    since = compute_effective_ts(job, commit_ts)
    before = [row[0] for row in log().rows if row[0] < since][-3:]
    between = [row[0] for row in log().rows if since <= row[0] < commit_ts]
    behind = [row[0] for row in log().rows if row[0] >= commit_ts][:6]
    # For an end inside the job, land uses the commit_ts before the first row instead (tests/spark_jobs).
    lowered = {between[0] - 1} if between else set()
    yield from sorted({*before, *lowered, commit_ts, *behind})


JOBS = [106, 108, 114, 123, 125]
"""DROP INDEX of either key, and ADD UNIQUE with ADD COLUMN in one ALTER."""


@pytest.mark.long
@pytest.mark.parametrize("job_id", spread(JOBS, least=3))
def test_windows_ending_anywhere_around_a_ddl_leave_the_same_rows(job_id: int) -> None:
    own = list(around(job_id))
    start, end = own[0] - 1, next(row[0] for row in log().rows if row[0] > own[-1])
    before = Replay()
    before.advance(start)
    whole = before.through(end)
    assert len(whole) > 200
    for cut in own:
        assert before.through(cut, end) == whole, cut
    assert before.through(*own, end) == whole


def test_window_ending_inside_a_ddl_would_lose_rows() -> None:
    # land lowers hi because the target would still have a key that TiDB does not check any more
    commit_ts, job = next((ts, job) for ts, job in log().jobs if job.id == 106)
    since = compute_effective_ts(job, commit_ts)
    end = next(row[0] for row in log().rows if row[0] > commit_ts)
    before = Replay()
    before.advance(since - 1)
    whole = before.through(end)
    inside = [row[0] for row in log().rows if since <= row[0] < commit_ts]
    assert any(len(before.through(cut, end)) < len(whole) for cut in inside)


@pytest.mark.long
def test_rows_equal_those_of_the_source() -> None:
    recorded = [state for state in Capture(CAPTURES / "zones_unique").read_states() if state.contents]
    replay, compared = Replay(), 0
    for state in recorded:
        replay.advance(state.commit_ts)
        content = next(c for c in state.contents if c["table"] == ".".join(TABLE))
        told = {row[0]: dict(zip(content["columns"], row, strict=True)) for row in content["rows"]}
        assert replay.target.rows == told, state.step
        compared += len(told)
    assert len(recorded) > 30
    assert compared > 10_000
