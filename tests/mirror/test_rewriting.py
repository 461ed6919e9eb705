"""Rows of a mirror on a disk are replaced by rewriting the files that have them, as delta-rs's MERGE would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.lake.parts import describe_file
from binlake.lake.storetable import build_add
from binlake.mirror import replica as replicas
from binlake.mirror import rewriting
from binlake.mirror.replica import Replica

MAP = pa.map_(pa.string(), pa.string())
ITEM = table_def(table_info(1, "item", [column(1, "id", flag=INT_PK), column(2, "v")], pk_is_handle=True), "d")
Change = tuple[int, int | None, int]
"""(key, value or None for a delete, commit_ts)."""


def net_of(*changes: Change) -> pa.Table:
    def image(key: int, value: int) -> list[tuple[str, str]]:
        return [("id", str(key)), ("v", str(value))]

    rows = [
        {"op": "replace", "before": None, "after": image(key, value), "copies": 1, "last_commit_ts": ts}
        if value is not None
        else {"op": "delete", "before": image(key, 0), "after": None, "copies": 1, "last_commit_ts": ts}
        for key, value, ts in changes
    ]
    types = [pa.string(), MAP, MAP, pa.int64(), pa.int64()]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(zip(rows[0], types, strict=True))))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    table = DeltaTable(str(folder)).to_pyarrow_table().sort_by("id")
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def make(folder: Path, *windows: list[Change]) -> Replica:
    replica = Replica(str(folder), 30)
    replica.create(ITEM, 0)
    for number, changes in enumerate(windows, 1):
        replica.merge_keyed(ITEM, net_of(*changes), 10 * number)
    return replica


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.soak)])
def test_mirror_is_as_after_merges_of_delta_rs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    # 34, R-32: keys come, go and come back; some changes are older than the row that is there
    monkeypatch.setattr(rewriting, "_GROUP_ROWS", 7)
    monkeypatch.setattr(rewriting, "_FILE_BYTES", 1)
    draw = Random(seed)
    windows = []
    for number in range(8):
        keys = draw.sample(range(40), 15)
        windows.append([
            (key, None if draw.random() < 0.3 else draw.randrange(99), max(1, 10 * number - draw.choice([0, 0, 25])))
            for key in keys
        ])  # fmt: skip
    make(tmp_path / "own", *windows)
    with monkeypatch.context() as patch:
        patch.setattr(replicas, "may_rewrite", lambda *_: False)
        make(tmp_path / "merged", *windows)
    assert rows_of(tmp_path / "own") == rows_of(tmp_path / "merged")
    engines = {commit["engineInfo"] for commit in DeltaTable(str(tmp_path / "own")).history(8)}
    assert engines == {"binlake"}
    assert len(DeltaTable(str(tmp_path / "own")).file_uris()) > 1


def test_files_without_a_changed_row_stay(tmp_path: Path) -> None:
    replica = make(tmp_path, [(1, 1, 5), (5, 1, 5)], [(6, 1, 15), (9, 1, 15)])
    first, second = sorted(DeltaTable(str(tmp_path)).file_uris(), key=_find_least)
    replica.merge_keyed(ITEM, net_of((7, 1, 25), (9, 2, 25)), 30)
    kept = DeltaTable(str(tmp_path)).file_uris()
    assert first in kept
    assert second not in kept
    assert [(row["id"], row["v"]) for row in rows_of(tmp_path)] == [(1, 1), (5, 1), (6, 1), (7, 1), (9, 2)]


def test_files_of_new_rows_of_the_same_part_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # U-06: a large window is many chunks, each key is in one of them.
    replica, read = make(tmp_path, [(1, 1, 5), (90, 1, 5)]), list[int]()
    match = rewriting.match_keys

    def count(*given: Any) -> Any:
        found = list(match(*given))
        read.append(len(found))
        return found

    monkeypatch.setattr(rewriting, "match_keys", count)
    passed: set[str] = set()
    for key in (2, 3):
        replica.merge_keyed(ITEM, net_of((key, 1, 15), (key + 50, 1, 15)), None, passed)
    assert len(passed) == 2
    # A file with an older row is read again: it has others.
    replica.merge_keyed(ITEM, net_of((1, 2, 15), (4, 1, 15)), None, passed)
    replica.merge_keyed(ITEM, net_of((5, 1, 15), (90, 2, 15)), 20, passed)
    assert (read, len(passed)) == ([1, 1, 1, 1], 2)
    assert [(row["id"], row["v"]) for row in rows_of(tmp_path)] == [
        (1, 2), (2, 1), (3, 1), (4, 1), (5, 1), (52, 1), (53, 1), (90, 2),
    ]  # fmt: skip


def _find_least(uri: str) -> int:
    found = pa.parquet.read_table(uri.removeprefix("file://"))["id"]
    return int(pc.min(found).as_py())


def test_nothing_is_left_of_a_write_that_dies_before_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = make(tmp_path, [(1, 1, 5), (2, 1, 5)])
    before, files = rows_of(tmp_path), sorted(tmp_path.glob("*.parquet"))

    def die(*_: object) -> None:
        raise ConnectionAbortedError

    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "_read_sizes", die)
        with pytest.raises(ConnectionAbortedError):
            replica.merge_keyed(ITEM, net_of((1, 2, 15)), 20)
    assert (rows_of(tmp_path), sorted(tmp_path.glob("*.parquet"))) == (before, files)
    assert Replica(str(tmp_path), 30).read_position() == 10
    again = Replica(str(tmp_path), 30)
    again.merge_keyed(ITEM, net_of((1, 2, 15)), 20)
    assert again.read_position() == Replica(str(tmp_path), 30).read_position() == 20
    assert [row["v"] for row in rows_of(tmp_path)] == [2, 1]


@pytest.mark.parametrize("fails", ["create_checkpoint", "update_incremental"])
def test_what_was_committed_stays_if_something_fails_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    # The next commit is due for a checkpoint.
    replica = make(tmp_path, *([(number % 5, number, 10 * number)] for number in range(1, 48)))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, fails, fail)
        with nullcontext() if fails == "create_checkpoint" else pytest.raises(OSError, match="no space"):
            replica.merge_keyed(ITEM, net_of((0, 99, 485)), 490)
    assert DeltaTable(str(tmp_path)).version() == 49
    assert Replica(str(tmp_path), 30).read_position() == 490
    assert [row["v"] for row in rows_of(tmp_path)] == [99, 46, 47, 43, 44]


def test_of_two_writers_of_a_version_the_second_is_refused(tmp_path: Path) -> None:
    make(tmp_path, [(1, 1, 5)])
    first, second = Replica(str(tmp_path), 30), Replica(str(tmp_path), 30)
    assert first.version == second.version
    second.merge_keyed(ITEM, net_of((1, 2, 15)), 20)
    files = sorted(tmp_path.glob("*.parquet"))
    with pytest.raises(CommitFailedError):
        first.merge_keyed(ITEM, net_of((1, 3, 16)), 20)
    assert sorted(tmp_path.glob("*.parquet")) == files
    assert not list((tmp_path / "_delta_log").glob("*.tmp"))
    assert [row["v"] for row in rows_of(tmp_path)] == [2]


def test_log_is_read_from_its_checkpoint(tmp_path: Path) -> None:
    replica = Replica(str(tmp_path), 30)
    replica.create(ITEM, 0)
    for number in range(1, 60):
        replica.merge_keyed(ITEM, net_of((number % 5, number, 10 * number)), 10 * number)
    assert list((tmp_path / "_delta_log").glob("*.checkpoint*.parquet"))
    for file in sorted((tmp_path / "_delta_log").glob("*.json"))[:40]:
        file.unlink()
    assert Replica(str(tmp_path), 30).read_position() == 590
    assert [row["v"] for row in rows_of(tmp_path)] == [55, 56, 57, 58, 59]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.alter.add_constraint({"small": "v < 1000"}),
        lambda table: table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
    ],
    ids=["constraint", "change data feed"],
)
def test_a_table_that_asks_more_of_a_writer_is_left_to_delta_rs(
    tmp_path: Path, change: Callable[[DeltaTable], None]
) -> None:
    make(tmp_path, [(1, 1, 5)])
    change(DeltaTable(str(tmp_path)))
    Replica(str(tmp_path), 30).merge_keyed(ITEM, net_of((1, 2, 15)), 20)
    table = DeltaTable(str(tmp_path))
    assert "delta-rs" in table.history(1)[0]["engineInfo"]
    assert [row["v"] for row in rows_of(tmp_path)] == [2]


PLAIN = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])


@pytest.mark.parametrize(
    ("schema", "change", "may"),
    [
        (PLAIN, {}, True),
        (PLAIN, {"partition_by": ["k"]}, False),
        (PLAIN, {"configuration": {"delta.appendOnly": "true"}}, False),
        (PLAIN, {"configuration": {"delta.checkpointInterval": "7"}}, True),
        (pa.schema([PLAIN.field(0), PLAIN.field(1).with_metadata({"delta.invariants": "{}"})]), {}, False),
        (pa.schema([PLAIN.field(0), PLAIN.field(1).with_metadata({"comment": "a value"})]), {}, True),
        (pa.schema([PLAIN.field(0)]), {}, False),
        (PLAIN.append(pa.field("more", pa.string())), {}, False),
    ],
    ids=["plain", "partitions", "property", "interval", "invariant", "comment", "fewer columns", "more columns"],
)
def test_only_a_plain_table_of_the_same_columns_is_rewritten(
    tmp_path: Path, schema: pa.Schema, change: dict[str, Any], may: bool
) -> None:
    table = DeltaTable.create(str(tmp_path), schema, **change)
    assert rewriting.may_rewrite(str(tmp_path), table, PLAIN) is may
    assert not rewriting.may_rewrite("s3://bucket/table", table, PLAIN)


@pytest.mark.parametrize(("feature", "may"), [("DeletionVectors", False), ("TimestampWithoutTimezone", True)])
def test_a_feature_with_rules_for_writers_is_left_to_delta_rs(tmp_path: Path, feature: str, may: bool) -> None:
    table = DeltaTable.create(str(tmp_path), PLAIN)
    table.alter.add_feature(getattr(TableFeatures, feature), allow_protocol_versions_increase=True)
    assert rewriting.may_rewrite(str(tmp_path), table, PLAIN) is may


def test_a_checkpoint_comes_at_the_interval_of_the_table(tmp_path: Path) -> None:
    make(tmp_path)
    DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.checkpointInterval": "3"})
    replica = Replica(str(tmp_path), 30)
    for number in range(1, 7):
        replica.merge_keyed(ITEM, net_of((number, 1, 10 * number)), 10 * number)
    found = sorted(int(file.name.partition(".")[0]) for file in (tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    # As delta-rs does it: versions are counted from 0.
    assert (found, replica.version) == ([2, 5, 8], 8)


def test_a_commit_says_whether_rows_were_replaced(tmp_path: Path) -> None:
    make(tmp_path, [(1, 1, 5)], [(2, 1, 15)], [(2, 2, 25)])
    last, before, first = DeltaTable(str(tmp_path)).history(3)
    assert [one["operation"] for one in (first, before, last)] == ["WRITE", "WRITE", "MERGE"]
    assert [one.get(rewriting.ADDED) for one in (first, before, last)] == ["true", "true", None]


LONG = "x" * 300


def test_statistics_exclude_no_row(tmp_path: Path) -> None:
    moments = [datetime(2020, 1, 1, 1, 1, 1, 123456), datetime(1969, 12, 31, 23, 59, 59, 999999)]
    values = {
        "small": [1, -3], "real": [1.5, -2.5], "odd": [float("nan"), 1.0], "text": ["é" + LONG, "b"],
        "day": [date(2020, 2, 3), date(1999, 1, 1)], "local": moments,
        "moment": [one.replace(tzinfo=UTC) for one in moments],
        "money": pa.array([Decimal("1.25"), None], pa.decimal128(20, 2)), "raw": [b"\xff", b""],
        "none": pa.nulls(2, pa.int64()), "kept": pa.nulls(2, MAP), "flag": [True, False],
    }  # fmt: skip
    table = pa.table(values)
    # In two row groups, so that the bounds are those of both.
    pa.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=1)
    stats = json.loads(describe_file(pa.parquet.read_metadata(tmp_path / "x.parquet")))
    assert stats["numRecords"] == 2
    assert {name: stats["nullCount"].get(name) for name in ("none", "money", "kept")} == {
        "none": 2, "money": 1, "kept": None,
    }  # fmt: skip
    most = sys.float_info.max
    assert (stats["minValues"], stats["maxValues"]) == (
        {"small": -3, "real": -2.5, "odd": -most, "text": "b", "day": "1999-01-01", "local": "1969-12-31 23:59:59.999",
         "moment": "1969-12-31T23:59:59.999Z", "money": 1.25, "flag": False},
        {"small": 1, "real": 1.5, "odd": most, "text": "é" + LONG[:255] + "\U0010ffff", "day": "2020-02-03",
         "local": "2020-01-01 01:01:01.124", "moment": "2020-01-01T01:01:01.124Z", "money": 1.25, "flag": True},
    )  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_delta_rs_finds_each_row_of_a_rewritten_file_by_each_column(tmp_path: Path, seed: int) -> None:
    # It takes a missing bound for a comparison with NULL, and then leaves the file out.
    draw = Random(seed)
    columns = {
        "flag": [draw.choice([True, False, None]) for _ in range(6)],
        "money": pa.array(
            [Decimal(draw.randrange(-(10**19), 10**19)).scaleb(-4) for _ in range(6)], pa.decimal128(30, 4)
        ),
        "text": [draw.choice("äz") * draw.choice([0, 1, 255, 257, 5000]) for _ in range(6)],
        "real": [draw.choice([float("nan"), draw.uniform(-1e9, 1e9)]) for _ in range(6)],
        "day": [date(draw.randrange(1, 9999), 2, 3) for _ in range(6)],
        "local": [datetime(draw.randrange(1, 9999), 1, 1, 1, 1, 1, draw.randrange(10**6)) for _ in range(6)],
    }
    rows = pa.table(columns)
    table = DeltaTable.create(str(tmp_path), rows.schema)
    pa.parquet.write_table(rows, tmp_path / "x.parquet", row_group_size=2)
    size, stats = (
        (tmp_path / "x.parquet").stat().st_size,
        describe_file(pa.parquet.read_metadata(tmp_path / "x.parquet")),
    )
    rewriting.commit_actions(str(tmp_path), table, [build_add("x.parquet", {}, size, stats)], {"operation": "WRITE"})
    found = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    for name in rows.column_names:
        for value in rows[name]:
            if value.is_valid and value.as_py() == value.as_py():
                assert found.count_rows(filter=pc.field(name) == value), (name, value)
