"""Where the windows of binlog files end, for random files; and files that are not in order."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from support.examples import seeds

from binlake.binlogfile.reading import BinlogDdl, BinlogTransaction, FilePosition, Item
from binlake.errors import CheckpointConflict, Permanent
from binlake.extras.reparo.windows import FileWindow, cut_windows
from binlake.wire import pb_binlog_pb2 as pb


def rows(ts: int, count: int = 1) -> BinlogTransaction:
    message = pb.Binlog(tp=pb.DML, commit_ts=ts)
    for _ in range(count):
        message.dml_data.events.add(schema_name="d", table_name="t", tp=pb.Insert)
    return BinlogTransaction(ts, FilePosition("binlog-1", ts), message)


def ddl(ts: int, db: str = "d") -> BinlogDdl:
    return BinlogDdl(ts, FilePosition("binlog-1", ts), db, "TRUNCATE TABLE `t`")


def cut(
    *items: Item, lo: int = 0, stop: int = 0, most: int = 100, opened: tuple[int, int] | None = None
) -> Iterator[FileWindow]:
    return cut_windows(items, lo, stop, most, lambda db, _: db != "other", opened)


def describe(windows: Iterator[FileWindow]) -> list[tuple[int, int, list[int], int]]:
    return [(one.lo, one.hi, [each.commit_ts for each in one.transactions], len(one.ddls)) for one in windows]


def test_rows_and_ddl_of_one_commit_ts_are_in_one_window() -> None:
    assert describe(cut(rows(10), ddl(20), ddl(20), rows(20), rows(30))) == [
        (0, 10, [10], 0), (10, 20, [20], 2), (20, 30, [30], 0),
    ]  # fmt: skip
    # Nothing follows the last one.
    assert describe(cut(ddl(20), rows(20, 9), most=3)) == [(0, 20, [20], 1)]


def test_final_ddl_has_its_own_window_and_the_rest_another() -> None:
    assert describe(cut(rows(10), ddl(20), stop=50)) == [(0, 10, [10], 0), (10, 20, [], 1), (20, 50, [], 0)]
    assert describe(cut(ddl(20), ddl(30, "other"))) == [(0, 20, [], 1), (20, 30, [], 0)]
    assert describe(cut(lo=40, stop=40)) == []


def test_windows_before_a_missing_open_window_are_returned_first() -> None:
    found = cut(rows(10), rows(30), opened=(15, 40))
    assert describe(iter([next(found)])) == [(0, 30, [10, 30], 0)]
    with pytest.raises(CheckpointConflict, match="15-40"):
        next(found)


@pytest.mark.parametrize(
    ("items", "at"),
    [
        ((rows(10), rows(10)), 10),
        ((rows(20), rows(10)), 10),
        ((ddl(20), rows(10)), 10),
        ((ddl(20), rows(20), rows(20)), 20),
        ((rows(20), ddl(20)), 20),
        ((rows(5),), 5),
        ((ddl(5),), 5),
        ((rows(4),), 4),
    ],
    ids=[
        "same commit_ts twice",
        "descending",
        "rows before an earlier ddl",
        "rows twice after a ddl",
        "ddl after rows of its commit_ts",
        "rows at lo",
        "ddl at lo",
        "rows below lo",
    ],
)
def test_files_out_of_commit_order_are_refused(items: tuple[Item, ...], at: int) -> None:
    with pytest.raises(Permanent, match="not in commit order") as error:
        list(cut(*items, lo=5))
    assert (error.value.where["commit_ts"], error.value.where["file"]) == (str(at), "binlog-1")


def draw_items(draw: Random) -> list[Item]:
    found: list[Item] = []
    for ts in range(10, 200, 10):
        kind = draw.random()
        if kind < 0.2:
            found += [ddl(ts) for _ in range(draw.randint(1, 2))]
            found += [rows(ts)] * (draw.random() < 0.5)
        elif kind < 0.25:
            found.append(ddl(ts, "other"))
        elif kind < 0.8:
            found.append(rows(ts, draw.randint(1, 4)))
    return found


@pytest.mark.parametrize("seed", seeds(60))
def test_killed_run_finds_its_windows_again(seed: int) -> None:
    draw = Random(seed)
    items, most = draw_items(draw), draw.randint(1, 8)
    stop = draw.choice([0, 500])
    windows = list(cut(*items, most=most, stop=stop))
    # Everything once, in order and without gaps.
    assert [one for window in windows for one in window.transactions] == [
        one for one in items if isinstance(one, BinlogTransaction)
    ]
    assert sum(len(window.ddls) for window in windows) == sum(
        isinstance(one, BinlogDdl) and one.db == "d" for one in items
    )
    assert [window.lo for window in windows] == [0, *(window.hi for window in windows)][: len(windows)]
    assert not windows or windows[-1].hi == max(stop, items[-1].commit_ts)
    for window in windows:
        assert all(one.commit_ts == window.hi for one in window.ddls)
        assert all(window.lo < one.commit_ts <= window.hi for one in window.transactions)
        assert not window.ddls or all(one.commit_ts == window.hi for one in window.transactions)
        assert sum(len(one.message.dml_data.events) for one in window.transactions[:-1]) < most
    # Killed in any window and run again with another window size: the open window stays the same.
    for window in windows:
        left = [one for one in items if one.commit_ts > window.lo]
        again = cut(*left, lo=window.lo, stop=stop, most=draw.randint(1, 8), opened=(window.lo, window.hi))
        assert next(again) == window
