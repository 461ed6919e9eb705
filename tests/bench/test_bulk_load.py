"""`make bench` writes what a TiDB would write: each transaction finds the row that the previous one left."""

from __future__ import annotations

import itertools
from collections import Counter

import cost_per_row
import numpy as np
import pytest
from bulk_load import WRITERS, BulkLoad, KnownTransactions
from support.examples import spread
from sysbench_rows import LOADS

from binlake.rows.schema import SchemaState, WindowSchemas
from binlake.rules import Rules
from binlake.spark_jobs.job.decoding import Decoder
from binlake.testkit.workload.source import LiveTransactions
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.pump_pb2 import WriteBinlogReq

pytestmark = pytest.mark.long

Row = dict[str, str]


@pytest.mark.parametrize("name", spread(list(LOADS), least=2))
def test_consecutive_changes_lead_to_the_expected_rows(name: str) -> None:
    bulk, binlog, jobs = cost_per_row.build_landed(LOADS[name].with_scale(0.03), whole=True)
    schemas = WindowSchemas(SchemaState().fold(enumerate(jobs)), [])
    batches = binlog.select(["payload", "commit_ts", "start_ts"]).to_batches()
    rows = [row for batch in Decoder(schemas, Rules()).decode_rows(batches, Counter())
            for row in batch.to_pylist(maps_as_pydicts="strict")]  # fmt: skip
    load, shown = bulk.writer.load, dict[tuple[str, str], Row]()
    assert len(rows) == load.rows * load.tables + load.transactions * load.changes
    for row in sorted(rows, key=lambda row: (row["commit_ts"], row["seq"])):
        key = (row["table"], row["key"])
        assert shown.pop(key, None) == row["before"]
        if row["after"] is not None:
            shown[key] = row["after"]
    for number in range(load.tables):
        own = sorted((row for (table, _), row in shown.items() if table == f"sbtest{number + 1}"), key=_id)
        lines = [
            dict(zip(("id", "k", "c", "pad"), map(str, line), strict=True)) for line in bulk.writer.iterate_rows(number)
        ]
        assert own == lines
        assert lines


def test_transactions_of_concurrent_writers_interleave() -> None:
    """A pump gets P and C in turn, and the C in another order than the P."""
    order: list[tuple[str, int]] = []

    class Recorder:
        def send(self, *messages: np.ndarray) -> None:
            for message in filter(len, itertools.chain(*itertools.zip_longest(*messages, fillvalue=()))):
                binlog = Binlog.FromString(WriteBinlogReq.FromString(message.tobytes()).payload)
                order.append(("C" if binlog.commit_ts else "P", binlog.start_ts))

        def wait(self) -> None:
            pass

    bulk = BulkLoad(LOADS["a"], cost_per_row.BenchClock(), 1, [Recorder()])
    bulk.create()
    order.clear()
    bulk.write(LOADS["a"].roles, 3 * WRITERS)
    prewritten, committed = ([ts for kind, ts in order if kind == wanted] for wanted in "PC")
    assert sorted(committed) == prewritten
    assert committed != prewritten
    assert all(order.index(("P", ts)) < order.index(("C", ts)) for ts in prewritten)
    middle = [kind for kind, _ in order[WRITERS:-WRITERS]]
    assert middle == ["P", "C"] * (2 * WRITERS)


def test_status_port_knows_the_outcome_of_a_transaction() -> None:
    known = KnownTransactions()
    known.begin(100, 10)
    known.begin(300, 10)
    known.end(100, 200)

    def info(start_ts: int) -> dict[str, object]:
        found: dict[str, object] = known.answer(LiveTransactions.build_key(start_ts), 0)["value"]["info"]
        return found

    assert info(103) == {"writes": [{"start_ts": 103, "commit_ts": 203}]}
    assert "lock" in info(305)
    assert info(110) == info(99) == {}


def _id(row: Row) -> int:
    return int(row["id"])
