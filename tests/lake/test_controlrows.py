"""Small files of a control table are read once per process; answers are those of all files."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from support.examples import seeds

from binlake.lake import control, controlrows
from binlake.lake.control import ControlTable
from binlake.lake.tables import Column, LakeTable

NUMBERS = LakeTable("t", "numbers", (Column("n", "BIGINT", "a number"), Column("kind", "STRING", "its kind")), ())


def a_table(folder: Path) -> ControlTable:
    return ControlTable(str(folder / "t"), NUMBERS)


def files_of(folder: Path) -> int:
    return len(DeltaTable(str(folder / "t")).file_uris())


def newest(rows: list[dict[str, Any]], count: int) -> list[int]:
    return sorted((row["n"] for row in rows), reverse=True)[:count]


@pytest.mark.long
@pytest.mark.parametrize("small_bytes", [0, 700, 64 << 10], ids=["all large", "some of each", "all small"])
@pytest.mark.parametrize("seed", seeds(12))
def test_every_query_is_answered_from_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int, seed: int
) -> None:
    draw = Random(seed)
    monkeypatch.setattr(controlrows, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(control, "COMPACT_EVERY", draw.choice([4, 7, 100]))
    monkeypatch.setattr(control, "FILE_BYTES", 1_500)
    one, other, rows = a_table(tmp_path), a_table(tmp_path), []
    for _ in range(draw.randint(5, 25)):
        step = [{"n": draw.randrange(1000), "kind": draw.choice("ab")} for _ in range(draw.choice([1, 1, 40]))]
        draw.choice([one, other]).append(step)
        rows += step
        if draw.random() < 0.1:
            step = rows = rows[: len(rows) // 2 + 1]
            one.replace(rows)
        if draw.random() < 0.1:
            other.tidy()
        reader, least = draw.choice([one, other, a_table(tmp_path)]), draw.randrange(1000)
        where = (ds.field("n") >= least) & (ds.field("kind") == "a")
        wanted = [row for row in rows if row["n"] >= least and row["kind"] == "a"]
        assert sorted(reader.read_rows(), key=str) == sorted(rows, key=str)
        assert sorted(row["n"] for row in reader.read_rows(["n"], where)) == sorted(row["n"] for row in wanted)
        assert reader.find_greatest("n", where) == max((row["n"] for row in wanted), default=None)
        assert [row["n"] for row in reader.read_newest(["n", "kind"], "n", 3, where)] == newest(wanted, 3)
    one.clear()
    assert (other.read_rows(), other.find_greatest("n"), other.read_newest(["n"], "n", 2)) == ([], None, [])


def test_small_file_is_read_once_for_all_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, read = a_table(tmp_path), []
    read_file = controlrows._read_file

    def count(open_file: Any, path: str, *more: Any) -> pa.Table:
        read.append(path)
        return read_file(open_file, path, *more)

    monkeypatch.setattr(controlrows, "_read_file", count)
    monkeypatch.setattr(control, "remember_rows", lambda *_: None)  # as if another process had written the rows
    for number in range(20):
        table.append([{"n": number, "kind": "a"}])
        for reader in (table, a_table(tmp_path)):
            assert (len(reader.read_rows()), reader.find_greatest("n")) == (number + 1, number)
    assert len(read) == len(set(read)) == files_of(tmp_path) == 20


def test_rows_that_this_process_wrote_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other, read = a_table(tmp_path), a_table(tmp_path), []
    table.append([{"n": 0, "kind": "a"}])
    table.read_rows()
    read_file = controlrows._read_file
    monkeypatch.setattr(controlrows, "_read_file", lambda *asked: read.append(asked[1]) or read_file(*asked))
    table.append([{"n": 1, "kind": "a"}, {"n": 2, "kind": "b"}])
    known = sorted(table.read_rows(), key=str)
    assert read == []
    other.replace([{"n": 3, "kind": "c"}])
    assert other.read_rows() == table.read_rows() == [{"n": 3, "kind": "c"}]
    assert read == []
    controlrows._cached.clear()
    assert a_table(tmp_path).read_rows() == [{"n": 3, "kind": "c"}]
    assert known == [{"n": 0, "kind": "a"}, {"n": 1, "kind": "a"}, {"n": 2, "kind": "b"}]


def test_large_file_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table(tmp_path)
    table.append([{"n": number, "kind": "a"} for number in range(500)])
    monkeypatch.setattr(controlrows, "SMALL_BYTES", 100)
    stored = table._read_stored()
    assert stored is not None
    assert (stored.small.num_rows, stored.files) == (0, {})
    assert len(table.read_rows()) == 500
    assert [most for most, _ in stored.iterate_newest_first("n", None)] == [499, 499]


def test_recreated_lake_shows_its_own_rows(tmp_path: Path) -> None:
    for number in range(2):
        table = a_table(tmp_path)
        table.append([{"n": number, "kind": "a"}])
        assert [row["n"] for row in table.read_rows()] == [number]
        (tmp_path / "t").rename(tmp_path / f"old-{number}")
        assert table.read_rows() == []


ODD = LakeTable(
    "odd",
    "partitions",
    (Column("n", "BIGINT", "a number"), Column("kind", "STRING", "its kind")),
    ("kind",),
)


def test_partitions_are_read_whatever_their_names(tmp_path: Path) -> None:
    table = ControlTable(str(tmp_path / "odd"), ODD)
    kinds = ["a", "x/y", "a b", "50%", "é", "k=v", "", None]
    for number, kind in enumerate(kinds):
        table.append([{"n": number, "kind": kind}])
    # Delta stores an empty partition value as NULL.
    assert {row["n"]: row["kind"] for row in table.read_rows()} == dict(enumerate([*kinds[:-2], None, None]))
    assert [row["n"] for row in table.read_rows(["n"], ds.field("kind") == "x/y")] == [1]
    assert [row["n"] for row in table.read_newest(["n", "kind"], "n", 2)] == [7, 6]


def test_own_writes_extend_what_a_pinned_reader_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # 34
    a_table(tmp_path).append([{"n": 0, "kind": "a"}])
    pinned, asked = ControlTable(str(tmp_path / "t"), NUMBERS, pinned=True), []
    assert len(pinned.read_rows()) == 1
    read = control.read_control_rows
    monkeypatch.setattr(control, "read_control_rows", lambda *about: asked.append(about) or read(*about))
    for number in (1, 2):
        pinned.append([{"n": number, "kind": "b"}])
        assert (sorted(row["n"] for row in pinned.read_rows()), asked) == ([*range(number + 1)], [])
        assert pinned.find_greatest("n") == number
    # If another process has written in between, its rows are read.
    write_deltalake(str(tmp_path / "t"), pa.table({"n": [3], "kind": ["c"]}), mode="append")
    pinned.append([{"n": 4, "kind": "b"}])
    assert (sorted(row["n"] for row in pinned.read_rows()), len(asked)) == ([0, 1, 2, 3, 4], 1)
    # Nor does it keep rows that a replacement took away.
    pinned.replace([{"n": 5, "kind": "a"}])
    assert [row["n"] for row in pinned.read_rows()] == [5]
