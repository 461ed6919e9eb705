"""`make bench-audit`: the cost of audit queries on MUTATIONS row changes (10 million) in 200 windows.

The queries: one key's history, one range of commit_ts, one transaction by its commit_ts and by its start_ts; on files
as windows append them, and after `binlake maintain`. Printed are the CPU seconds, files, row groups and bytes that a
query reads, compared with the floor: a full scan.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from history_load import BASE, SPAN_MS, build_mutations, compute_step, cut_by_day

from binlake.lake.mutations import commit_day, match_commit_ts, match_keys, match_table, read_changes
from binlake.lake.opentable import open_dataset
from binlake.lake.parts import write_parts
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MUTATION
from binlake.spark_jobs.commands.maintain import lay_out, list_days
from binlake.spark_jobs.engine.engine import LocalEngine
from binlake.spark_jobs.job.lake import commit_parts, ensure_tables

WINDOWS = 200


def main(mutations: int, folder: Path) -> int:
    """Print the cost of each query before and after maintenance."""
    paths = LakePaths(str(folder / "lake"))
    ensure_tables(paths)
    began = time.perf_counter()
    folder_of_rows, parts = paths.locate_table(MUTATION.name), []
    for numbers in cut_by_day(mutations, mutations // WINDOWS):
        # One file a window, as merge writes it.
        parts += write_parts(folder_of_rows, MUTATION, [build_mutations(numbers, compute_step(mutations))])
    commit_parts(paths, MUTATION, parts, [], {"stage": "bench"})
    print(f"{mutations:,} row changes in {WINDOWS} windows: {time.perf_counter() - began:.0f} s", flush=True)
    report(paths, "as windows append")
    began = time.perf_counter()
    for part in list_days(paths.locate_table("mutation")):
        lay_out(LocalEngine(), paths, MUTATION, part)
    print(f"layout: {time.perf_counter() - began:.0f} s")
    report(paths, "after maintain")
    return 0


def report(paths: LakePaths, name: str) -> None:
    """Print a line for each query."""
    table = DeltaTable(paths.locate_table("mutation"))
    sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"].to_pylist()
    print(f"{name}: {len(sizes)} files, {sum(sizes) / 1e6:,.0f} MB")
    middle = BASE + (SPAN_MS << 17)
    [one, *_] = read_changes(paths, middle, middle + (SPAN_MS << 18) // 10_000)
    key = match_table(one.db, one.table) & match_keys([one.key])
    time_question(paths, "one key", BASE - 1, 2**62, key)
    time_question(paths, "commit_ts range of 0.1 %", middle, middle + (SPAN_MS << 18) // 1000)
    time_question(paths, "one commit_ts", one.commit_ts - 1, one.commit_ts)
    started = (ds.field("commit_date") >= commit_day(one.start_ts)) & (ds.field("start_ts") == one.start_ts)
    time_question(paths, "one start_ts", one.start_ts, one.start_ts + (86_400_000 << 18), started)
    began = time.process_time()
    columns = ["commit_ts", "db", "table", "key", "before", "after"]
    count = sum(batch.num_rows for batch in open_dataset(table).to_batches(columns=columns))
    print(f"  {'floor: scan':<26} {time.process_time() - began:7.2f} s {count:>9,} rows", flush=True)


def time_question(paths: LakePaths, name: str, lo: int, hi: int, where: ds.Expression | None = None) -> None:
    """Print the CPU seconds of a query as `binlake audit` runs it (the best of two), and what it reads."""
    seconds = []
    for _ in range(2):
        began = time.process_time()
        changes = read_changes(paths, lo, hi, where)
        seconds.append(time.process_time() - began)
    data = open_dataset(DeltaTable(paths.locate_table("mutation")))
    wanted = match_commit_ts(lo, hi) if where is None else match_commit_ts(lo, hi) & where
    files = list(data.get_fragments(filter=wanted))
    groups = [
        group for file in files for part in file.split_by_row_group(wanted, data.schema) for group in part.row_groups
    ]
    size = sum(group.total_byte_size for group in groups) / 1e6
    print(f"  {name:<26} {min(seconds):7.2f} s {len(changes):>9,} rows {len(files):>4} files {len(groups):>5} groups "
          f"{size:8.1f} MB", flush=True)  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="binlake-bench-", dir=os.environ.get("BINLAKE_BENCH_DIR")) as name:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000, Path(name)))
