"""What a control table's small files hold is read once a process; the answers are those of all of its files."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from support.examples import examples

from binlake.lake import control, controlrows
from binlake.lake.control import ControlTable
from binlake.lake.tables import Column, LakeTable

NUMBERS = LakeTable(
    "t", "numbers", (Column("n", "BIGINT", "a number"), Column("kind", "STRING", "its kind")), (), "delta-rs"
)


def a_table(folder: Path) -> ControlTable:
    return ControlTable(str(folder / "t"), NUMBERS)


def files_of(folder: Path) -> int:
    return len(DeltaTable(str(folder / "t")).file_uris())


def newest(rows: list[dict[str, Any]], count: int) -> list[int]:
    return sorted((row["n"] for row in rows), reverse=True)[:count]


@pytest.mark.parametrize("small_bytes", [0, 700, 64 << 10], ids=["all large", "some of each", "all small"])
@pytest.mark.parametrize("seed", range(examples(5)))
def test_every_question_is_answered_from_all_files(
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
        assert sorted(reader.rows(), key=str) == sorted(rows, key=str)
        assert sorted(row["n"] for row in reader.rows(["n"], where)) == sorted(row["n"] for row in wanted)
        assert reader.greatest("n", where) == max((row["n"] for row in wanted), default=None)
        assert [row["n"] for row in reader.newest(["n", "kind"], "n", 3, where)] == newest(wanted, 3)
    one.clear()
    assert (other.rows(), other.greatest("n"), other.newest(["n"], "n", 2)) == ([], None, [])


def test_a_small_file_is_read_once_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, read = a_table(tmp_path), []
    open_dataset = controlrows.open_dataset

    def counting(opened: DeltaTable) -> Any:
        class Data:
            def get_fragments(self) -> Any:
                return [Fragment(one) for one in open_dataset(opened).get_fragments()]

        return Data()

    class Fragment:
        def __init__(self, fragment: ds.Fragment) -> None:
            self.path, self._fragment = fragment.path, fragment

        def to_table(self, schema: Any) -> Any:
            read.append(self.path)
            return self._fragment.to_table(schema)

    monkeypatch.setattr(controlrows, "open_dataset", counting)
    for number in range(20):
        table.append([{"n": number, "kind": "a"}])
        for reader in (table, a_table(tmp_path)):
            assert (len(reader.rows()), reader.greatest("n")) == (number + 1, number)
    assert len(read) == len(set(read)) == files_of(tmp_path) == 20


def test_a_large_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table(tmp_path)
    table.append([{"n": number, "kind": "a"} for number in range(500)])
    monkeypatch.setattr(controlrows, "SMALL_BYTES", 100)
    stored = table._stored()
    assert stored is not None
    assert (stored.small.num_rows, stored.files) == (0, {})
    assert len(table.rows()) == 500
    assert [most for most, _ in stored.newest_first("n", None)] == [499]


def test_a_lake_that_is_made_anew_in_its_place_shows_its_own_rows(tmp_path: Path) -> None:
    for number in range(2):
        table = a_table(tmp_path)
        table.append([{"n": number, "kind": "a"}])
        assert [row["n"] for row in table.rows()] == [number]
        (tmp_path / "t").rename(tmp_path / f"old-{number}")
        assert table.rows() == []
