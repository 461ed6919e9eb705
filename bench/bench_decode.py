"""`make bench-decode`: rows decoded per CPU second, compared with the plain decoder and the floor.

The floor in the same run: protobuf splitting one binlog after the other. Compare ratios, because absolute figures
depend on the machine. Each case runs in a separate process, so that its peak memory can be measured.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa
from decode_load import SHAPES, OneTable, Transactions, build_table, build_transactions

from binlake.rows.codec import MutationBatch, walk
from binlake.rows.codec.splits import MOST_BYTES
from binlake.rows.codec.transaction import DecodeStats, read_mutations, split
from binlake.spark_jobs.job.decoding import PIECE_ROWS

ROWS = {"narrow": 200_000, "wide": 40_000, "text-heavy": 60_000}
BULK, SINGLE = 1000, 1
_PLAIN_SHARE = 8
_BIG = 256 << 20


def main(arguments: list[str]) -> int:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="run one case, such as `narrow 1000`")
    args = parser.parse_args(arguments)
    if args.case:
        return _measure_case(*args.case.split())
    for name in SHAPES:
        for in_each in (BULK, SINGLE):
            _run_in_process(f"{name.split()[0]} {in_each}")
    _run_in_process("big 0")
    return 0


def _run_in_process(case: str) -> None:
    subprocess.run([sys.executable, __file__, "--case", case], check=True)


def _measure_case(word: str, in_each: str) -> int:
    if word == "big":
        return _measure_big_transaction()
    name = next(name for name in SHAPES if name.startswith(word))
    columns = SHAPES[name]
    table = build_table(columns)
    load, tables = build_transactions(table, columns, ROWS[word], int(in_each)), OneTable(table)
    size, pieces = sum(len(payload) for _, _, payload in load), list(split_into_pieces(load))
    _, peak = _measure_peak(lambda: decode(pieces, tables))
    rate = measure_best_rate(lambda: decode(pieces, tables), 5)
    least = measure_best_rate(lambda: measure_floor(load, tables), 5)
    plain = measure_best_rate(lambda: decode_plainly(load[: max(1, len(load) // _PLAIN_SHARE)], tables), 2)
    print(
        f"{name:<20} {in_each:>4} rows/txn {size // ROWS[word]:>5} B/row  decoded {rate:>10,.0f} rows/s"
        f"  one by one {plain:>8,.0f} ({rate / plain:4.1f} x)  split only {least:>10,.0f} ({rate / least:.2f} of it)"
        f"  peak +{peak >> 20} MiB",
        flush=True,
    )
    return 0


def _measure_big_transaction() -> int:
    """Decode one transaction of 256 MiB; print its peak memory as a multiple of its size."""
    columns = SHAPES["text-heavy (1 kB)"]
    table = build_table(columns)
    rows = _BIG // 1530
    load, tables = build_transactions(table, columns, rows, rows), OneTable(table)
    size = len(load[0][2])
    began = time.process_time()
    count, more = _measure_peak(lambda: decode_one_by_one(load, tables))
    seconds = time.process_time() - began
    print(
        f"one transaction of {size >> 20} MiB, {count:,} rows: {count / seconds:,.0f} rows/s, "
        f"peak +{more >> 20} MiB = {more / size:.1f} times its size in addition to the payload itself",
        flush=True,
    )
    return 0


def split_into_pieces(load: Transactions) -> Iterator[pa.RecordBatch]:
    """The transactions in batches, as merge reads them from the lake."""
    for first in range(0, len(load), PIECE_ROWS):
        columns = zip(*load[first : first + PIECE_ROWS], strict=True)
        kinds = (pa.int64(), pa.int64(), pa.binary())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["commit_ts", "start_ts", "payload"])


def decode(pieces: list[pa.RecordBatch], tables: OneTable) -> int:
    """Decode to record batches of the table `mutation`, as merge does; returns the number of rows."""
    batch, rows = MutationBatch(), 0
    for piece in pieces:
        if piece["payload"].nbytes > MOST_BYTES * piece.num_rows:
            rows += _add_one_by_one(batch, zip(*(column.to_pylist() for column in piece.columns), strict=True), tables)
        else:
            batch.add_all(
                piece["payload"], piece["commit_ts"].to_numpy(), piece["start_ts"].to_numpy(), tables.find_schemas_at
            )
        if batch.is_full:
            rows += _drain(batch)
    return rows + _drain(batch)


def decode_one_by_one(load: Transactions, tables: OneTable) -> int:
    """The same, but each transaction is split separately."""
    batch = MutationBatch()
    return _add_one_by_one(batch, iter(load), tables) + _drain(batch)


def _add_one_by_one(batch: MutationBatch, load: Iterator[tuple[int, int, bytes]], tables: OneTable) -> int:
    rows = 0
    for commit_ts, start_ts, payload in load:
        batch.add(payload, commit_ts, start_ts, tables)
        if batch.is_full:
            rows += _drain(batch)
    return rows


def _drain(batch: MutationBatch) -> int:
    return sum(taken.num_rows for taken in batch.take_batches())


def decode_plainly(load: Transactions, tables: OneTable) -> int:
    """The same columns, but every transaction is split and every row decoded separately."""
    fewest, walk.FEWEST = walk.FEWEST, 1 << 60
    try:
        return decode_one_by_one(load, tables)
    finally:
        walk.FEWEST = fewest


def measure_floor(load: Transactions, tables: OneTable) -> int:
    """Split every payload into the bytes of its rows."""
    return sum(1 for _ in _decode_rows(load, tables))


def _decode_rows(load: Transactions, tables: OneTable) -> Iterator[bytes]:
    for commit_ts, start_ts, payload in load:
        for _, _, _, rows in read_mutations(split(payload, commit_ts, start_ts), commit_ts, tables, DecodeStats()):
            yield from rows.inserts
            yield from rows.updates
            yield from rows.deletes


def measure_best_rate(work: Callable[[], int], repeats: int) -> float:
    """The best rows/s of CPU time of a few runs."""
    best = 0.0
    for _ in range(repeats):
        began = time.process_time()
        rows = work()
        best = max(best, rows / (time.process_time() - began))
    return best


def _read_memory(word: str) -> int:
    """The bytes in a `Vm` line of this process's status."""
    match = re.search(rf"{word}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) * 1024


def _measure_peak(work: Callable[[], int]) -> tuple[int, int]:
    """(result, peak bytes of memory above the amount used before)."""
    before = _read_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    answer = work()
    return answer, _read_memory("VmHWM") - before


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
