"""Rows are added without a MERGE only where no row of the mirror has one of their keys."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.mirror.replica import Replica
from binlake.mirror.rewriting import has_key

MAP = pa.map_(pa.string(), pa.string())
ITEM = table_def(table_info(1, "item", [column(1, "id", flag=INT_PK), column(2, "v")], pk_is_handle=True), "d")
LONG = "x" * 90
"""Longer than what statistics keep of a text."""


def _write(folder: Path, *files: list[str | None]) -> DeltaTable:
    for keys in files:
        write_deltalake(str(folder), pa.table({"_rowkey": pa.array(keys, pa.string())}), mode="append")
    return DeltaTable(str(folder))


@pytest.mark.parametrize(
    ("files", "wanted", "found"),
    [
        ([["b", "d"], ["f", "h"]], ["a", "c", "e", "i"], False),
        ([["b", "d"], ["f", "h"]], ["a", "h"], True),
        ([["b", "d"], ["f", "h"]], ["b"], True),
        ([[LONG + "a", LONG + "c"]], [LONG + "b"], False),
        ([[LONG + "a", LONG + "c"]], [LONG + "c"], True),
        ([[LONG + "\U0010ffff" * 9]], [LONG + "\U0010ffff" * 9], True),
        ([["\U0010ffff" * 40]], ["\U0010ffff" * 40], True),
        ([[None, "b"]], ["b"], True),
        ([[]], ["b"], False),
        ([["b"]], [], False),
    ],
)  # fmt: skip
def test_key_is_found_wherever_it_is(
    tmp_path: Path, files: list[list[str | None]], wanted: list[str], found: bool
) -> None:
    assert has_key(_write(tmp_path, *files), pa.chunked_array([wanted], pa.string())) is found


def _net(*changes: tuple[str, str | None, int]) -> pa.Table:
    """(key, value or None for a delete, commit_ts)."""
    rows = [
        {"op": "replace", "before": None, "after": [("id", key), ("v", value)], "copies": 1, "last_commit_ts": ts}
        if value is not None
        else {"op": "delete", "before": [("id", key), ("v", "0")], "after": None, "copies": 1, "last_commit_ts": ts}
        for key, value, ts in changes
    ]
    types = [pa.string(), MAP, MAP, pa.int64(), pa.int64()]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(zip(rows[0], types, strict=True))))


@pytest.mark.parametrize("at_once", [1, 16_384])
def test_new_rows_are_added_and_known_ones_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("binlake.mirror.replica._ROWS_AT_ONCE", at_once)
    replica = Replica(str(tmp_path), 30)
    replica.create(ITEM, 0)
    windows = [
        (_net(("1", "7", 5), ("2", "7", 6)), "WRITE"),
        (_net(("3", "7", 15), ("9", None, 16)), "WRITE"),
        (_net(("4", "7", 25), ("2", "8", 26)), "MERGE"),
        (_net(("3", None, 35)), "MERGE"),
        # A file that was rewritten is read again.
        (_net(("1", "9", 45), ("5", "9", 46)), "MERGE"),
    ]
    for number, (net, operation) in enumerate(windows, 1):
        replica.merge_keyed(ITEM, net, 10 * number)
        table = DeltaTable(str(tmp_path))
        assert table.history(1)[0]["operation"] == operation
        assert replica.read_position() == 10 * number
        assert replica.has_merged(10 * number)
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().select(["id", "v"]).sort_by("id").to_pydict()
    assert found == {"id": [1, 2, 4, 5], "v": [9, 8, 7, 9]}


def test_a_part_that_was_added_before_a_crash_is_merged_by_the_rerun(tmp_path: Path) -> None:
    # the position follows with the last part
    replica = Replica(str(tmp_path), 30)
    replica.create(ITEM, 0)
    replica.merge_keyed(ITEM, _net(("1", "7", 5)), None)
    assert replica.read_position() == 0
    again = Replica(str(tmp_path), 30)
    again.merge_keyed(ITEM, _net(("1", "7", 5)), None)
    again.merge_keyed(ITEM, _net(("2", "7", 6)), 10)
    assert (again.read_position(), DeltaTable(str(tmp_path)).count()) == (10, 2)
