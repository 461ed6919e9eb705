"""The tables with most row changes are counted by table, over all segments, and recorded with the window."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from binlake.ddl.definitions import SegmentTable
from binlake.lake.mutations import count_touched_tables, find_touched_tables
from binlake.spark_jobs.stages.compact import _HOTTEST, find_hottest


def batch(*rows: tuple[int, str, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[0] for row in rows], pa.int64()), *(pa.array([row[at] for row in rows]) for at in (1, 2))],
        names=["commit_ts", "db", "table"],
    )


def test_changes_are_counted_by_segment_and_table_over_all_batches() -> None:
    batches = [batch((1, "d", "a"), (5, "d", "a"), (5, "d", "b")), batch((2, "d", "a"), (9, "d", "b"), (9, "d", "b"))]
    counted = count_touched_tables(batches, [5])
    assert counted == {
        SegmentTable(0, "d", "a"): 2, SegmentTable(1, "d", "a"): 1, SegmentTable(1, "d", "b"): 3,
    }  # fmt: skip
    assert find_touched_tables(batches, [5]) == sorted(counted)


def test_hottest_tables_are_of_all_segments_and_few() -> None:
    touched = Counter({SegmentTable(0, "d", "a"): 2, SegmentTable(1, "d", "a"): 2, SegmentTable(0, "d", "b"): 3})
    assert find_hottest(touched) == [("d.a", 4), ("d.b", 3)]
    many = Counter({SegmentTable(0, "d", f"t{number:03}"): 1 for number in range(50)})
    assert [name for name, _ in find_hottest(many)] == [f"d.t{number:03}" for number in range(_HOTTEST)]
    assert find_hottest(Counter()) == []
