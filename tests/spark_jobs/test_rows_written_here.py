"""Rows that the driver writes: separate files with the types, folders and statistics on which readers rely."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from binlake import tso
from binlake.errors import Transient
from binlake.lake.paths import LakePaths
from binlake.lake.tables import BINLOG, CHANGE, STATEMENT
from binlake.spark_jobs.job import lake
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.lake import ensure_tables, may_have_rows, overwrite
from binlake.spark_jobs.shared.sinks import build_window_predicate

NOTE = {"run": "r", "window": "1-2", "stage": "convert"}


@pytest.fixture
def paths(tmp_path: Path) -> LakePaths:
    made = LakePaths(str(tmp_path / "lake"))
    ensure_tables(made)
    return made


def statements(window: str, *texts: str) -> pa.Table:
    """Rows of `statement`, one batch per text."""
    row = {"window": window, "segment": 0, "phase": 2, "db": "d", "table": "t", "kind": "replace", "expect": [1],
           "rows": 1, "digest": "x"}  # fmt: skip
    rows = [row | {"batch": number, "sql": [text]} for number, text in enumerate(texts)]
    return pa.Table.from_pylist(rows, STATEMENT.build_arrow_schema())


def read_table(paths: LakePaths, table: str) -> list[dict[str, object]]:
    return list(DeltaTable(paths.locate_table(table)).to_pyarrow_table().to_pylist())


def list_files(paths: LakePaths, table: str) -> list[Path]:
    return sorted(Path(paths.locate_table(table)).rglob("*.parquet"))


def test_rows_of_a_window_are_one_file_in_its_folder_in_one_commit(paths: LakePaths) -> None:
    # DESIGN 2: the same rows in the same folder; DESCRIBE HISTORY shows the commit's note
    one, two = Bounds(1, 2), Bounds(2, 3)
    assert overwrite(statements("1-2", "a", "b"), paths, STATEMENT, build_window_predicate(one), NOTE) == 2
    assert overwrite(statements("2-3", "c"), paths, STATEMENT, build_window_predicate(two), NOTE) == 1
    assert {row["sql"][0]: row["window"] for row in read_table(paths, "statement")} == {
        "a": "1-2",
        "b": "1-2",
        "c": "2-3",
    }  # type: ignore[index]
    assert [file.parent.name for file in list_files(paths, "statement")] == ["window=1-2", "window=2-3"]
    newest = DeltaTable(paths.locate_table("statement")).history(1)[0]
    assert (newest["version"], json.loads(newest["userMetadata"])) == (2, NOTE)
    assert may_have_rows(paths, STATEMENT, build_window_predicate(one))
    assert not may_have_rows(paths, STATEMENT, build_window_predicate(Bounds(1, 3)))
    # Writing again replaces the first rows.
    assert overwrite(statements("1-2", "d"), paths, STATEMENT, build_window_predicate(one), NOTE) == 1
    assert sorted(row["sql"][0] for row in read_table(paths, "statement")) == ["c", "d"]  # type: ignore[index]


def binlogs(*commit_ts: int) -> pa.Table:
    """Rows of `binlog`."""
    rows = [
        {"commit_ts": ts, "start_ts": ts - 1, "chunk": 0, "commit_date": tso.to_datetime(ts).date(), "pump": "p",
         "kind": "dml", "schema_version": 1, "job_id": 0, "schema_state": 0, "payload": b"p%d" % ts}
        for ts in commit_ts
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, BINLOG.build_arrow_schema())


def test_statistics_cover_commit_ts_but_not_payloads(paths: LakePaths) -> None:
    # a window is found by statistics; minimum and maximum payloads would only take space
    first, last = tso.compose(1_795_305_599_999), tso.compose(1_795_305_600_000)
    overwrite(binlogs(first, last), paths, BINLOG, "commit_ts > 0", NOTE)
    assert [file.parent.name for file in list_files(paths, "binlog")] == [
        "commit_date=2026-11-21",
        "commit_date=2026-11-22",
    ]
    assert may_have_rows(paths, BINLOG, f"commit_ts > {last - 1}")
    assert not may_have_rows(paths, BINLOG, f"commit_ts > {last}")
    for file in list_files(paths, "binlog"):
        group = pq.read_metadata(file).row_group(0)
        kept = {column.path_in_schema: column.statistics is not None for column in map(group.column, range(9))}
        assert (kept["commit_ts"], kept["payload"]) == (True, False)
    assert sorted(row["payload"] for row in read_table(paths, "binlog")) == sorted([b"p%d" % first, b"p%d" % last])  # type: ignore[type-var]


def test_columns_have_the_types_of_the_table(paths: LakePaths) -> None:
    # Readers compare the files with the table; a wider number or text type would not match.
    images = pa.map_(pa.string(), pa.string())
    rows = pa.table({
        "window": ["1-2"], "segment": pa.array([0], pa.int64()), "db": ["d"], "table": ["t"],
        "key": pa.array(['["1"]'], pa.large_string()), "identity": ["primary"], "op": ["replace"],
        "before": pa.array([None], images), "after": pa.array([[("id", "1"), ("n", None)]], images),
        "copies": [1], "first_commit_ts": [1], "last_commit_ts": [2], "mutations": pa.array([1], pa.int32()),
    })  # fmt: skip
    overwrite(rows, paths, CHANGE, build_window_predicate(Bounds(1, 2)), NOTE)
    (file,) = list_files(paths, "change")
    schema = pq.read_schema(file)
    assert [schema.field(name).type for name in ("segment", "key", "mutations")] == [
        pa.int32(), pa.string(), pa.int64()
    ]  # fmt: skip
    (row,) = read_table(paths, "change")
    assert (row["key"], row["after"], row["before"]) == ('["1"]', [("id", "1"), ("n", None)], None)


def test_failed_commit_leaves_the_table_unchanged(paths: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    # Invariant 11: the stage may run again; nothing refers to the files written before.
    def no_room(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(lake, "write_parts", no_room)
    with pytest.raises(Transient, match="`statement` could not be written: no space left"):
        overwrite(statements("1-2", "a"), paths, STATEMENT, build_window_predicate(Bounds(1, 2)), NOTE)
    monkeypatch.undo()
    assert read_table(paths, "statement") == []
