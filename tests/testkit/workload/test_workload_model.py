"""The workload: equal seeds give equal rows, and its binlogs lead to the state it reports (MISSION S0-12, S0-23)."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples, spread
from workload_helpers import CountingClock, MemoryClient, committed, replayed, run

from binlake.cluster.source.protocol import Committed, Locked, RolledBack, Unknown, read_status
from binlake.errors import ConfigError
from binlake.pump_service.statusport import StatusJobs, format_go_json
from binlake.rows.codec.encode import write_text
from binlake.rows.codec.values import read_text
from binlake.rows.schema import ColumnInfo
from binlake.testkit.workload.catalog import WriterRows
from binlake.testkit.workload.generator import choose_fate
from binlake.testkit.workload.runner import Latencies, Runner
from binlake.testkit.workload.source import LiveTransactions
from binlake.testkit.workload.spec import KINDS, SIZED, Faults, Spec, build_column_json
from binlake.wire import binlog_pb2 as pb

ALL = tuple(KINDS)
ODD = Faults(rollback=0.1, lose_commit=0.05, lose_rollback=0.05, hold=0.1, double=0.05)


def shown(line: dict[str, object]) -> list[tuple[str | None, ...]]:
    rows = [
        tuple(value["hex"] if isinstance(value, dict) else value for value in row)
        for row in line["rows"]  # type: ignore[attr-defined]
    ]
    return sorted(rows, key=str)


@pytest.mark.long
@pytest.mark.parametrize("seed", spread(range(4), least=2))
def test_the_binlogs_lead_to_the_expected_state(seed: int) -> None:
    # Every kind of column, DDL and fault; decoded and applied by the consumer's own code.
    spec = Spec(seed=seed, transactions=600, columns=ALL, ddl_every=40, keyless=2, faults=ODD, hot_keys=2)
    done = run(spec)
    assert {line["table"]: shown(line) for line in done.states() if "table" in line} == replayed(done)
    assert done.runner.tally.counts["ddl"] > 12
    assert sum(len(rows) for rows in replayed(done).values()) > 50


@pytest.mark.long
@pytest.mark.parametrize("writers", [1, 4])
def test_equal_seeds_write_equal_rows_whichever_writer_is_faster(writers: int) -> None:
    spec = Spec(seed=3, transactions=300, writers=writers, ddl_every=60, faults=ODD)
    first, second = run(spec), run(spec)
    assert first.states() == second.states()
    values = [Counter(binlog.prewrite_value for binlog in done.client.got) for done in (first, second)]
    assert values[0] == values[1]
    assert (
        run(Spec(seed=4, transactions=300, writers=writers)).states()
        != run(Spec(seed=5, transactions=300, writers=writers)).states()
    )


def test_each_transaction_has_a_prewrite_and_one_outcome() -> None:
    # S0-12, invariant 2: the commit_ts is above every timestamp known at the ack.
    done = run(Spec(transactions=200, writers=4, faults=Faults(rollback=0.3)))
    types, counts = done.client.types(), done.runner.tally.counts
    assert types[pb.Commit] == counts["commit"] + counts["ddl"]
    assert types[pb.Rollback] == counts["rollback"] > 20
    assert types[pb.Prewrite] == types[pb.Commit] + types[pb.Rollback]
    acked: set[int] = set()
    for binlog in done.client.got:
        if binlog.tp == pb.Prewrite:
            acked.add(binlog.start_ts)
        else:
            assert binlog.start_ts in acked
        if binlog.tp == pb.Commit:
            assert binlog.commit_ts > binlog.start_ts
    assert len(committed(done)) == types[pb.Commit]


def test_faults_lose_hold_and_double_binlogs_as_configured() -> None:
    done = run(Spec(transactions=500, faults=ODD))
    types, counts = done.client.types(), done.runner.tally.counts
    assert len(done.client.forgotten) == counts["lose_commit"] + counts["lose_rollback"] > 0
    ended = Counter(binlog.start_ts for binlog in done.client.got if binlog.tp != pb.Prewrite)
    assert set(ended.values()) == {1}
    assert types[pb.Prewrite] - sum(ended.values()) == counts["double"] + len(done.client.forgotten)
    order = {binlog.start_ts: n for n, binlog in enumerate(done.client.got) if binlog.tp == pb.Prewrite}
    late = [n for n, b in enumerate(done.client.got) if b.tp != pb.Prewrite and n - order[b.start_ts] > 20]
    assert len(late) > counts["hold"] / 4


def test_a_transaction_without_a_pump_fails_and_leaves_no_row() -> None:
    # S0-23; a DDL's P is retried until a pump stores it.
    done = run(Spec(transactions=200, ddl_every=20), MemoryClient(refuse_every=5))
    assert done.runner.tally.counts["failed"] > 20
    assert {line["table"]: shown(line) for line in done.states() if "table" in line} == replayed(done)


@pytest.mark.long
def test_hot_keys_take_most_updates() -> None:
    done = run(Spec(transactions=2000, writers=1, tables=1, keyless=0, hot_keys=2, hot_share=0.9, mix=(10, 90, 0)))
    updates = Counter(
        row[:4] for p in done.client.got for m in pb.PrewriteValue.FromString(p.prewrite_value).mutations
        for row in m.updated_rows
    )  # fmt: skip
    assert sum(count for _, count in updates.most_common(2)) > 0.8 * updates.total()


def test_the_width_of_a_row_is_as_configured() -> None:
    done = run(Spec(transactions=50, tables=1, keyless=0, columns=("varchar", "blob"), row_bytes=3000, mix=(1, 0, 0)))
    rows = [row for line in done.states() if "rows" in line for row in line["rows"]]
    assert {(len(text), len(blob["hex"])) for _, text, blob in rows} == {(1500, 3000)}


@pytest.mark.parametrize("word", KINDS)
def test_every_kind_generates_values_that_fit_its_column(word: str) -> None:
    random = Random(1)
    for width in (1, 100, 40_000) if word in SIZED else (1,):
        col, value = KINDS[word]("c", width)
        column = ColumnInfo.from_json(build_column_json(col, 1, 0))
        for _ in range(50):
            text = value(random)
            assert read_text(column, write_text(column, text), 0)[0] == text


def test_outcomes_are_answered_like_a_status_port() -> None:
    known, key = LiveTransactions(), LiveTransactions.build_key
    for start_ts in (10, 20, 30):
        known.begin(start_ts)
    known.end(20, 25)
    known.end(30, 0)

    def told(start_ts: int, of: bytes | None = None) -> object:
        return read_status(format_go_json(known.answer(of or key(start_ts), 0)), start_ts)

    assert [told(10), told(20), told(30)] == [Locked(), Committed(25), RolledBack()]
    assert isinstance(told(40), Unknown)
    assert isinstance(told(40, b"strange"), Unknown)


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())))
@settings(max_examples=examples(50))
def test_a_part_keeps_its_ids_and_rows_together(steps: list[tuple[int, bool]]) -> None:
    part, model = WriterRows(1, 1), {}
    for row_id, there in steps:
        row = {"v": str(row_id)} if there else None
        part.put(row_id, row)
        model.pop(row_id, None)
        if row is not None:
            model[row_id] = row
        assert part.rows == model
        assert sorted(part.ids) == sorted(model)


@given(st.floats(0, 1, exclude_max=True))
def test_fates_occur_with_their_shares(chance: float) -> None:
    faults = Faults(rollback=0.25, hold=0.25)
    assert choose_fate(faults, chance) == ("rollback" if chance < 0.25 else "hold" if chance < 0.5 else "commit")


def test_quantiles_are_within_five_percent() -> None:
    latencies = Latencies()
    for number in range(1, 1001):
        latencies.add(number / 1000)
    assert latencies.compute_quantile(0.5) == pytest.approx(0.5, rel=0.06)
    assert latencies.compute_quantile(0.99) == pytest.approx(0.99, rel=0.06)
    assert Latencies().compute_quantile(0.5) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"transactions": 1, "seconds": 1.0}, {"transactions": 1, "columns": ("nonsense",)},
        {"transactions": 1, "columns": ()}, {"transactions": 1, "keyless": 9}, {"transactions": 1, "txn_rows": (3, 2)},
        {"transactions": 1, "mix": (0, 1, 1)}, {"transactions": 1, "ddl": ("drop-moon",)},
        {"transactions": 1, "writers": 0}, {"transactions": 1, "hot_share": 2.0}, {"transactions": 1, "rate": -1.0},
    ],
)  # fmt: skip
def test_an_invalid_load_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Spec(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Faults(rollback=0.6, hold=0.6)


def test_a_load_that_no_pump_takes_says_so_until_one_does() -> None:
    spec, client = Spec(transactions=1, tables=1), MemoryClient(refuse_every=1)
    runner = Runner(spec, client, CountingClock().fetch_ts, LiveTransactions(), StatusJobs())
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    while not runner.find_trouble():
        threading.Event().wait(0.01)
    assert runner.find_trouble() == ["no pump accepted the prewrite"]
    client.refuse_every = 0
    thread.join(60)
    assert (thread.is_alive(), runner.find_trouble()) == (False, [])
