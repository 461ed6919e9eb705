"""Rows decoded per second on one core, narrow and wide, beside the floor that no decoder can pass in Python.

Run: `python bench/bench_decode.py [capture folder]` (default tests/captures/sysbench_like). The floor splits the same
payloads by protobuf and touches each row once, without looking into it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from binlake.capture import Capture
from binlake.codec import MutationBatch, MutationBuilder, commit_binlog, decode_transaction, prewrite_value
from binlake.schema import DdlJob, SchemaState, TableDef
from binlake.wire import binlog_pb2 as pb

Transactions = list[tuple[int, int, bytes]]
BATCH_ROWS = 8192


def load(capture: Capture) -> tuple[SchemaState, Transactions]:
    """The last schema of the capture, and its complete transactions of user tables."""
    state = SchemaState().fold((0, DdlJob.parse(text)) for text in capture.job_texts())
    prewrites: dict[int, bytes] = {}
    out: Transactions = []
    for payload in capture.binlogs():
        message = pb.Binlog.FromString(payload)
        if message.tp == pb.Prewrite:
            prewrites[message.start_ts] = message.prewrite_value
        elif message.tp == pb.Commit and not message.ddl_job_id:
            message.prewrite_value = prewrites[message.start_ts]
            out.append((message.commit_ts, message.start_ts, message.SerializeToString()))
    return state, out


def large(state: SchemaState, transactions: Transactions, rows: int = 1000) -> Transactions:
    """The inserts of the first table, `rows` a transaction: what a bulk load looks like."""
    _, _, payload = transactions[0]
    table_id = pb.PrewriteValue.FromString(pb.Binlog.FromString(payload).prewrite_value).mutations[0].table_id
    table = state.table(table_id)
    assert isinstance(table, TableDef)
    builder = MutationBuilder(table)
    change = next(decode_transaction(payload, 1, 1, state))
    for _ in range(rows):
        builder.insert(change.after or {})
    value = prewrite_value(1, [builder.message])
    return [(n, n, commit_binlog(n, n, b"k", value)) for n in range(1, 21)]


def floor(transactions: Transactions) -> int:
    """Split every payload and touch each row."""
    rows = 0
    for _, _, payload in transactions:
        value = pb.PrewriteValue.FromString(pb.Binlog.FromString(payload).prewrite_value)
        for mutation in value.mutations:
            for row in (*mutation.inserted_rows, *mutation.updated_rows, *mutation.deleted_rows):
                rows += bool(row)
    return rows


def as_changes(state: SchemaState, transactions: Transactions) -> int:
    """One RowChange with dicts per row."""
    return sum(1 for t in transactions for _ in decode_transaction(t[2], t[0], t[1], state))


def as_arrow(state: SchemaState, transactions: Transactions) -> int:
    """Record batches of the table `mutation`."""
    batch, rows = MutationBatch(), 0
    for commit_ts, start_ts, payload in transactions:
        rows += batch.add(payload, commit_ts, start_ts, state)
        if len(batch) >= BATCH_ROWS:
            batch.take()
    batch.take()
    return rows


def rate(work: Callable[[], int], repeats: int = 3) -> float:
    """Best rows/s (process CPU time) of a few runs."""
    best = 0.0
    for _ in range(repeats):
        start = time.process_time()
        rows = work()
        best = max(best, rows / (time.process_time() - start))
    return best


def main(arguments: list[str]) -> int:
    """Print rows/s of each form and of the floor."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent.parent / "tests/captures/sysbench_like"
    state, small = load(Capture(folder))
    for name, work in (("as captured", small), ("bulk, 1000 rows a transaction", large(state, small))):
        print(f"{folder.name}, {name}: {len(work):,} transactions")
        print(f"  floor (protobuf only)     {rate(lambda w=work: floor(w)):>12,.0f} rows/s")
        print(f"  decode_transaction        {rate(lambda w=work: as_changes(state, w)):>12,.0f} rows/s")
        print(f"  MutationBatch to Arrow    {rate(lambda w=work: as_arrow(state, w)):>12,.0f} rows/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
