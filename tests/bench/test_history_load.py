"""The synthetic history of the benchmarks is what stages write: the pages' searches find its rows."""

from __future__ import annotations

from pathlib import Path

from history_load import (
    ROWS_OF_A_TRANSACTION,
    build_binlogs,
    build_mutations,
    compute_step,
    cut_by_day,
)

from binlake.lake.mutations import match_keys, match_table, read_changes
from binlake.lake.paths import LakePaths
from binlake.lake.seek import TimeBudget, find_newest
from binlake.lake.tables import BINLOG, MUTATION, parse_schema
from binlake.spark_jobs.commands.maintain import write_clustered
from binlake.spark_jobs.job.lake import commit_parts, ensure_tables

COUNT = 3000
STEP = compute_step(COUNT)


def test_parts_are_whole_transactions_of_one_day_and_any_of_them_can_be_built_alone() -> None:
    parts = cut_by_day(COUNT, 500)
    assert [number for part in parts for number in part] == list(range(COUNT))
    assert all(len(part) <= 500 and part.start % ROWS_OF_A_TRANSACTION == 0 for part in parts)
    tables = [build_mutations(part, STEP) for part in parts]
    assert {len(table["commit_date"].unique()) for table in tables} == {1}
    assert len({table["commit_date"][0] for table in tables}) == 3
    assert build_mutations(range(parts[0].start + 100, parts[0].stop), STEP) == tables[0].slice(100)


def test_rows_are_found_where_the_stages_would_have_written_them(tmp_path: Path) -> None:
    paths, parts = LakePaths(str(tmp_path / "r")), []
    ensure_tables(paths)
    for numbers in cut_by_day(COUNT, 700):
        parts += write_clustered(paths.locate_table(MUTATION.name), MUTATION, build_mutations(numbers, STEP))
    commit_parts(paths, MUTATION, parts, [], {"stage": "test"})
    found = read_changes(paths, 0, 1 << 62)
    assert len(found) == COUNT
    row = found[COUNT // 2]
    for image in (row.before, row.after):
        assert image is None or (f'["{image["id"]}"]', len(image["c"] or "")) == (row.key, 32)
    assert {(one.op, one.before is None, one.after is None) for one in found} == {
        ("insert", True, False), ("update", False, False), ("delete", False, True),
    }  # fmt: skip
    where = match_table(row.db, row.table) & match_keys([row.key])
    assert row in find_newest(paths, 0, 1 << 62, where, 20, TimeBudget(60)).changes
    binlogs = build_binlogs(cut_by_day(COUNT, 700)[0], STEP)
    assert binlogs.schema == parse_schema(BINLOG.build_spark_schema())
    assert binlogs["commit_ts"].to_pylist() == sorted({one.commit_ts for one in found})[: binlogs.num_rows]
    assert all(one.start_ts < one.commit_ts for one in found)
