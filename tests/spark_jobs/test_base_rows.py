"""The rows of a full load as net changes: the same as those that compact derives key by key, in groups that follow from
the transactions alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from binlake.base.lakecolumns import Change
from binlake.changes.net.columns import NET, compute_net_changes
from binlake.rows.codec import MUTATION_SCHEMA
from binlake.spark_jobs.engine.rows import FileRows, HeldRows, JoinedRows, MappedRows, Rows
from binlake.spark_jobs.tables.baserows import build_base_rows
from binlake.spark_jobs.tables.held import WindowChanges
from binlake.spark_jobs.tables.rendered import CHANGE_ARROW
from binlake.window.definitions import Cell, SegmentTable

CELLS = (
    Cell("d", "keyed", 0, 1, 1000, "primary", ("id",), (None,)),
    Cell("d", "other", 0, 1, 1000, "unique", ("id",), (None,)),
)


def transaction(commit_ts: int, table: str, first: int, count: int) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "commit_ts": commit_ts, "start_ts": commit_ts - 1, "seq": n, "schema_version": 1, "source_db": "d",
            "source_table": table, "db": "d", "table": table, "table_id": 7, "op": "insert", "key": f'["{first + n}"]',
            "after": [("id", str(first + n)), ("v", None if n % 3 else "x")],
        }
        for n in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, MUTATION_SCHEMA)


LOADED = [
    transaction(10, "keyed", 0, 5),
    transaction(11, "other", 0, 4),
    transaction(12, "keyed", 100, 7),
    transaction(20, "keyed", 200, 1),
]
ALL = pa.concat_tables(LOADED)


def held(_: Path) -> list[Rows]:
    return [HeldRows(ALL)]


def held_apart(_: Path) -> list[Rows]:
    return [HeldRows(ALL.slice(0, 7)), HeldRows(ALL.slice(7))]


def held_in_another_order(_: Path) -> list[Rows]:
    return [HeldRows(ALL.take(pa.array(list(range(ALL.num_rows))[::-1])))]


def in_files(folder: Path) -> list[Rows]:
    """Row groups that divide transactions, in a file that also has other windows' rows."""
    path = folder / "m.parquet"
    every = pa.concat_tables([transaction(5, "keyed", 900, 3), ALL, transaction(30, "keyed", 950, 3)])
    pq.write_table(every, path, row_group_size=4)
    return [FileRows(((str(path), ()),), 1000, (9, 20))]


def joined(_: Path) -> list[Rows]:
    return [JoinedRows((HeldRows(ALL.slice(0, 3)), HeldRows(ALL.slice(3, 1)))), HeldRows(ALL.slice(4))]


def mapped(_: Path) -> list[Rows]:
    return [MappedRows(HeldRows(ALL), _same, tuple(MUTATION_SCHEMA.names))]


def _same(rows: pa.Table) -> pa.Table:
    return rows


def read(rows: Sequence[Rows]) -> list[dict[str, Any]]:
    batches = [batch for one in rows for batch in one.read(CHANGE_ARROW.names)]
    return sorted(pa.Table.from_batches(batches, CHANGE_ARROW).to_pylist(), key=lambda row: (row["table"], row["key"]))


@pytest.mark.parametrize("parts", [held, held_apart, held_in_another_order, in_files, joined, mapped])
def test_rows_and_groups_do_not_depend_on_where_rows_are(parts: Any, tmp_path: Path) -> None:
    base = build_base_rows(WindowChanges(tuple(parts(tmp_path))), "9-20", CELLS)
    found = {number: read(own) for number, own in base.groups}
    assert {n: [row["last_commit_ts"] for row in own] for n, own in found.items()} == {
        0: [10] * 5, 1: [11] * 4, 2: [12] * 7, 3: [20],
    }  # fmt: skip
    expected = compute_net_changes(ALL, CELLS).select(NET.names).to_pylist()
    rows = [{name: row[name] for name in NET.names} for own in found.values() for row in own]
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert {row[Change.WINDOW] for own in found.values() for row in own} == {"9-20"}
    assert base.sizes == {SegmentTable(0, "d", "keyed"): 13, SegmentTable(0, "d", "other"): 4}
    assert (base.parts, base.fold.count, base.is_base) == ((), 0, True)


def test_many_transactions_share_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.spark_jobs.tables.baserows.MOST_GROUPS", 2)
    base = build_base_rows(WindowChanges((HeldRows(ALL),)), "9-20", CELLS)
    assert [(number, len(read(own))) for number, own in base.groups] == [(0, 9), (1, 8)]


def test_rows_of_other_tables_are_left_out() -> None:
    base = build_base_rows(WindowChanges((HeldRows(ALL),)), "9-20", CELLS[:1])
    assert sum(len(read(own)) for _, own in base.groups) == 13
    assert base.sizes == {SegmentTable(0, "d", "keyed"): 13}
