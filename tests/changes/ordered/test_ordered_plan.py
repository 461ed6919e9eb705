"""Rounds, queues and batches: every timing of the workers gives the rows of serial execution."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.rowhistory import KEYED, History, Row, plan
from support.tabledefs import col, key, primary, table

from binlake.changes.net import RowEvent
from binlake.changes.ordered import PlanOptions
from binlake.errors import Permanent
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements import BatchLimits, StatementBatch

SCHEMA = (
    "CREATE TABLE d.t (id INTEGER PRIMARY KEY, u INT UNIQUE, v INT, UNIQUE (v, u))",
    "CREATE TABLE d.log (line INT, n INT)",
)


class Server:
    """SQLite with these tables; it runs MariaDB statements as far as these tests need."""

    def __init__(self) -> None:
        self.link = sqlite3.connect(":memory:", isolation_level=None)
        self.link.execute("ATTACH ':memory:' AS d")
        for statement in SCHEMA:
            self.link.execute(statement)

    def run(self, batch: StatementBatch) -> None:
        for sql, expected in zip(batch.sql, batch.expect, strict=True):
            affected = self.link.execute(_sqlite(sql)).rowcount
            assert expected in (-1, affected), sql

    def state(self) -> tuple[list[Any], list[Any]]:
        query = self.link.execute
        return query("SELECT * FROM d.t ORDER BY id").fetchall(), sorted(query("SELECT * FROM d.log"), key=str)


def _sqlite(sql: str) -> str:
    sql = sql.replace(" <=> ", " IS ")
    limited = re.match(r"(DELETE FROM|UPDATE) (\S+)( SET .*)? WHERE (.*) LIMIT 1$", sql)
    if limited:
        verb, name, sets, where = limited.groups()
        sql = f"{verb} {name}{sets or ''} WHERE rowid IN (SELECT rowid FROM {name} WHERE {where} LIMIT 1)"
    sql = sql.replace("ON DUPLICATE KEY UPDATE", "ON CONFLICT (id) DO UPDATE SET")
    return re.sub(r"=VALUES\((`\w+`)\)", r"=excluded.\1", sql)


def schedules(batches: Sequence[StatementBatch], chance: random.Random) -> Iterator[StatementBatch]:
    """Random orders that rounds and queues allow."""
    for number in sorted({batch.round for batch in batches}):
        queues: dict[int, list[StatementBatch]] = {}
        for batch in batches:
            if batch.round == number:
                queues.setdefault(batch.queue, []).append(batch)
        while queues:
            queue = chance.choice(sorted(queues))
            yield queues[queue].pop(0)
            if not queues[queue]:
                del queues[queue]


def executed(batches: Sequence[StatementBatch], seed: int) -> tuple[list[Any], list[Any]]:
    server = Server()
    for batch in schedules(batches, random.Random(seed)):
        server.run(batch)
    return server.state()


OPTIONS = st.builds(
    PlanOptions,
    workers=st.integers(1, 6),
    limits=st.builds(BatchLimits, rows=st.integers(1, 5)),
    multiple_rows=st.booleans(),
    strategy=st.sampled_from(["causality", "flush"]),
    round_rows=st.integers(1, 30),
)


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 10**6), OPTIONS, st.booleans(), st.integers(0, 10**6))
def test_any_schedule_equals_serial_execution(seed: int, options: PlanOptions, safe: bool, timing: int) -> None:
    # S4-14, S4-16, R-36: unique swaps, moved keys, keyless duplicates, NULLs; plain and safe; both rules
    history = History(seed, 40)
    rows, lines = executed(plan(history.events, options, safe), timing)
    assert rows == sorted(history.rows.values(), key=str)
    assert lines == sorted(history.lines, key=str)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 10**6), OPTIONS, st.integers(0, 10**6))
def test_full_repetition_in_safe_mode_gives_the_same(seed: int, options: PlanOptions, timing: int) -> None:
    # S3-20 (G of data-migration 6.1): a prefix, then everything again
    history = History(seed, 40)
    keyed = [(definition, event) for definition, event in history.events if definition is KEYED]
    batches = plan(keyed, options, safe=True)
    chance, server = random.Random(timing), Server()
    for batch in list(schedules(batches, chance))[: chance.randint(0, len(batches))]:
        server.run(batch)
    for batch in schedules(batches, chance):
        server.run(batch)
    assert server.state()[0] == sorted(history.rows.values(), key=str)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 10**6), OPTIONS)
def test_whole_ts_of_a_round_covers_only_complete_transactions(seed: int, options: PlanOptions) -> None:
    # S0-72, S3-05: once the earlier rounds are applied, every transaction up to whole_ts is applied
    history = History(seed, 40)
    batches = plan(history.events, options)
    assert [batch.batch for batch in batches] == list(range(len(batches)))
    assert [batch.round for batch in batches] == sorted(batch.round for batch in batches)
    assert sum(batch.rows for batch in batches) == len(history.events)
    done = 0
    for number in sorted({batch.round for batch in batches}):
        (whole,) = {batch.whole_ts for batch in batches if batch.round == number}
        assert sum(1 for _, event in history.events if event.commit_ts <= whole) <= done
        done += sum(batch.rows for batch in batches if batch.round == number)


def change(before: Row | None, after: Row | None, commit_ts: int = 1, definition: TableDef = KEYED) -> Any:
    names = [column.name for column in definition.columns]
    images = [None if row is None else dict(zip(names, map(str, row), strict=True)) for row in (before, after)]
    op = "insert" if before is None else "delete" if after is None else "update"
    return definition, RowEvent(commit_ts, 0, 0, op, *images)


ITEST = table("itest", col("id", not_null=True), col("name"), col("age"), keys=(primary("id"),))


@pytest.mark.parametrize(("strategy", "rounds"), [("causality", 1), ("flush", 2)])
def test_itest_example_is_correct_under_any_timing(strategy: Any, rounds: int) -> None:
    # S0-69, S4-16; the third before the first would leave only (5,14)
    events = [
        change((3, 1, 2), (4, 3, 15), 1, ITEST),
        change((2, 1, 1), (5, 2, 14), 2, ITEST),
        change((3, 3, 15), None, 3, ITEST),
    ]
    batches = plan(events, PlanOptions(workers=4, limits=BatchLimits(rows=1), strategy=strategy))
    assert len({batch.round for batch in batches}) == rounds
    for seed in range(20):
        order = [batch.sql[0].split()[0] for batch in schedules(batches, random.Random(seed))]
        moved = next(n for n, b in enumerate(schedules(batches, random.Random(seed))) if "= 4" in b.sql[0])
        assert moved < order.index("DELETE")


def test_changes_of_a_moved_unique_value_stay_in_order() -> None:
    # S0-71: delete (1, a), insert (2, a) with 4 workers
    events = [change(None, (1, 7, 0)), change((1, 7, 0), None), change(None, (2, 7, 0))]
    for seed in range(20):
        assert executed(plan(events, PlanOptions(workers=4, limits=BatchLimits(rows=1))), seed)[0] == [(2, 7, 0)]


def test_one_group_uses_one_worker() -> None:
    # S4-15
    events = [change((n, 1, 1), (n + 1, 1, 1), n) for n in range(5)]
    batches = plan(events, PlanOptions(workers=8, limits=BatchLimits(rows=1)))
    assert len({batch.queue for batch in batches}) == 1
    apart = plan([change(None, (n, n, n)) for n in range(50)], PlanOptions(workers=8))
    assert len({batch.queue for batch in apart}) == 8


def test_a_transaction_is_split_over_workers_and_batches() -> None:
    # S3-01: 1000 rows, batch 100, 4 workers
    events = [change(None, (n, n, n)) for n in range(1000)]
    batches = plan(events, PlanOptions(workers=4, limits=BatchLimits(rows=100)))
    assert len(batches) >= 10
    assert max(batch.rows for batch in batches) == 100
    assert {batch.round for batch in batches} == {0}
    # S0-66, S4-31: all transactions of a worker are full, except for the last one
    alone = plan(events[:250], PlanOptions(workers=1, limits=BatchLimits(rows=100)))
    assert [batch.rows for batch in alone] == [100, 100, 50]


def test_large_rows_fill_a_batch_earlier() -> None:
    events = [change(None, (n, n, 10**60)) for n in range(50)]
    batches = plan(events, PlanOptions(workers=1, limits=BatchLimits(rows=100, bytes=200)))
    assert max(batch.rows for batch in batches) == 4


def test_very_long_transaction_is_cut_into_rounds() -> None:
    # The number of remembered keys is bounded by rows, for any size of a transaction
    events = [change(None, (n, n, n)) for n in range(100)]
    batches = plan(events, PlanOptions(workers=2, round_rows=10))
    assert {batch.round for batch in batches} == {0, 1, 2}
    assert {batch.whole_ts for batch in batches} == {0}


def test_changes_out_of_order_are_refused() -> None:
    with pytest.raises(Permanent, match="not in commit order"):
        plan([change(None, (1, 1, 1), 5), change(None, (2, 2, 2), 4)], PlanOptions())


def test_documented_example_in_mode_ordered() -> None:
    # S0-21, S0-22, S4-08: INSERT, INSERT, UPDATE, UPDATE, DELETE, INSERT on one worker
    test: Callable[..., Any] = lambda b, a: change(b, a, 1, table_of)  # noqa: E731
    table_of = table("test", col("id"), col("name"), keys=(primary("id"),))
    events = [
        test(None, (1, 10)),
        test(None, (2, 11)),
        test((1, 10), (1, 12)),
        test((2, 11), (2, 13)),
        test((2, 13), None),
        test(None, (2, 12)),
    ]
    (batch,) = plan(events, PlanOptions(workers=1))
    assert [sql.split()[0] for sql in batch.sql] == ["INSERT", "INSERT", "UPDATE", "UPDATE", "DELETE", "INSERT"]


def test_value_with_unknown_equals_runs_alone() -> None:
    # a circled letter equals a plain one in some collations
    name = col("name", t.VARCHAR, collate="utf8mb4_unicode_ci")
    named = table("n", col("id"), name, keys=(primary("id"), key("name", "name")))
    texts = ["a", "b", "ⓐ", "c", "d"]
    events = [
        (named, RowEvent(n, 0, 0, "insert", None, {"id": str(n), "name": text})) for n, text in enumerate(texts, 1)
    ]
    batches = plan(events, PlanOptions(workers=1))
    assert [(batch.round, batch.rows) for batch in batches] == [(0, 2), (1, 1), (2, 2)]
