"""Rows that tasks read: each row of a window once, in parts of similar size, in order where that is asked."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.examples import seeds

from binlake.errors import LostRange
from binlake.lake.paths import LakePaths
from binlake.spark_jobs.engine import rows as enginerows
from binlake.spark_jobs.engine.engine import FileStore, Keeper, LocalEngine, MemoryStore
from binlake.spark_jobs.engine.exchange import OrderedRows, Split, cut_in_order, exchange
from binlake.spark_jobs.engine.rows import (
    FileRows,
    MappedRows,
    MemoryRows,
    Rows,
    StoredRows,
    cut_rows,
    pack_rows,
    read_table,
)

SCHEMA = pa.schema([("commit_ts", pa.int64()), ("seq", pa.int64()), ("text", pa.string())])
ORDER = ("commit_ts", "seq")


def draw_rows(draw: Random, count: int) -> pa.Table:
    """Rows in any order; a commit_ts may have several."""
    rows = [{"commit_ts": draw.randint(1, 40), "seq": seq, "text": "x" * draw.randint(0, 9)} for seq in range(count)]
    return pa.Table.from_pylist(rows, SCHEMA)


def write_file(path: Path, rows: pa.Table, group_rows: int) -> str:
    pq.write_table(rows, path, row_group_size=group_rows)
    return str(path)


def list_all(parts: list[FileRows] | list[Rows]) -> list[dict[str, object]]:
    return [row for part in parts for batch in part.read(SCHEMA.names) for row in batch.to_pylist()]


@pytest.mark.parametrize("seed", seeds(20))
def test_parts_of_a_range_have_each_of_its_rows_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Random(seed)
    rows = draw_rows(draw, draw.randint(1, 60)).sort_by("commit_ts")
    files = [
        write_file(tmp_path / f"{n}.parquet", rows.slice(first, 20), draw.randint(1, 9))
        for n, first in enumerate(range(0, rows.num_rows, 20))
    ]
    monkeypatch.setattr(enginerows, "_list_files", lambda *_: files)
    lo, hi = draw.randint(0, 20), draw.randint(20, 40)
    parts = enginerows.list_history_rows(LakePaths("x"), None, lo, hi, draw.choice((1, 300, 1 << 20)))  # type: ignore[arg-type]
    expected = [row for row in rows.to_pylist() if lo < row["commit_ts"] <= hi]
    assert list_all(parts) == expected
    assert len(parts) <= enginerows.MOST_PARTS
    # A reader that does not ask for commit_ts gets the same rows.
    texts = [row["text"] for part in parts for batch in part.read(["text"]) for row in batch.to_pylist()]
    assert texts == [row["text"] for row in expected]


@pytest.mark.parametrize("seed", seeds(20))
def test_rows_are_read_in_order_whatever_their_parts(seed: int, tmp_path: Path) -> None:
    draw = Random(seed)
    rows = draw_rows(draw, draw.randint(1, 80))
    parts: list[Rows] = []
    for first in range(0, rows.num_rows, 25):
        some = rows.slice(first, 25)
        if draw.random() < 0.5:
            parts.append(MemoryRows(some))
        else:
            path = write_file(tmp_path / f"{first}.parquet", some.sort_by("commit_ts"), draw.randint(1, 9))
            parts.append(FileRows(((path, ()),), 100))
    cut = cut_in_order(parts, draw.choice((1, 200, 1 << 20)))
    found = [row for one in cut for batch in one.read(SCHEMA.names, ORDER) for row in batch.to_pylist()]
    assert found == rows.sort_by([(name, "ascending") for name in ORDER]).to_pylist()
    # A commit_ts is in one range only, so that a task sees whole transactions.
    ranges = [{row["commit_ts"] for batch in one.read(SCHEMA.names, ORDER) for row in batch.to_pylist()} for one in cut]
    assert sum(map(len, ranges)) == len(set().union(*ranges))


def test_rows_in_order_come_in_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.spark_jobs.engine.exchange.BATCH_ROWS", 7)
    [ordered] = cut_in_order([MemoryRows(draw_rows(Random(1), 30))], 1)
    assert [batch.num_rows for batch in ordered.read(SCHEMA.names, ORDER)] == [7, 7, 7, 7, 2]
    assert isinstance(ordered, OrderedRows)


def test_no_rows_are_no_range() -> None:
    assert cut_in_order([], 1) == []
    assert cut_in_order([MemoryRows(SCHEMA.empty_table())], 1) == []


def test_exchanged_rows_come_to_their_share_once(tmp_path: Path) -> None:
    draw = Random(5)
    rows = draw_rows(draw, 100)

    def split(part: Rows) -> Split[int]:
        table = read_table([part], SCHEMA)
        return Split([(table, table["seq"].to_numpy() % 7)], table.num_rows)

    for store in (FileStore(str(tmp_path / "s")), MemoryStore(1 << 20, FileStore(str(tmp_path / "t")))):
        with store:
            parts = [MemoryRows(rows.slice(first, 30)) for first in range(0, 100, 30)]
            found = exchange(LocalEngine(), store, split, parts)
            assert list(found.shares) == list(range(7))
            assert found.found == [30, 30, 30, 10]
            for share, own in found.shares.items():
                seqs = read_table(own, SCHEMA)["seq"].to_pylist()
                assert seqs == [seq for seq in range(100) if seq % 7 == share]
    assert not (tmp_path / "s").exists()


def test_memory_holds_only_what_fits(tmp_path: Path) -> None:
    rows = draw_rows(Random(1), 50)
    with MemoryStore(rows.nbytes + 1, FileStore(str(tmp_path / "s"))) as store:
        [first], [second] = store.put([rows]), store.put([rows])
        assert (type(first), type(second)) == (MemoryRows, StoredRows)
        assert list_all([second]) == list_all([first])
    assert not (tmp_path / "s").exists()


def test_a_keeper_holds_all_rows_of_a_task_or_none() -> None:
    batches = [pa.table({"n": list(range(10))}) for _ in range(4)]
    kept: list[pa.Table] = []
    keeper = Keeper(3 * batches[0].nbytes)
    assert list(keeper.keep(batches[:2], kept)) == batches[:2] == kept
    more: list[pa.Table] = []
    assert list(keeper.keep(batches, more)) == batches
    assert more == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.parquet", draw_rows(Random(1), 5), 5)
    Path(path).write_bytes(b"damaged")
    with pytest.raises(LostRange, match=r"a\.parquet"):
        list_all([FileRows(((path, ()),), 1)])


def test_mapped_rows_are_those_of_the_step() -> None:
    rows = MemoryRows(draw_rows(Random(1), 9))
    mapped = MappedRows(rows, lambda some: some.slice(2), ("commit_ts", "seq"))
    [batch] = mapped.read(["seq"])
    assert batch.to_pylist() == [{"seq": seq} for seq in range(2, 9)]


def test_rows_rewritten_by_delta_rs_have_the_same_types(tmp_path: Path) -> None:
    maps = pa.map_(pa.string(), pa.string())
    rows = pa.table({"text": ["a"], "bytes": [b"b"], "list": [["c"]], "image": pa.array([[("d", None)]], maps)})
    views = pa.schema(
        [("text", pa.string_view()), ("bytes", pa.binary_view()), ("list", pa.list_(pa.string_view())), ("image", maps)]
    )
    path = write_file(tmp_path / "a.parquet", rows.cast(views), 5)
    assert pq.ParquetFile(path).schema_arrow.field("text").type == pa.string_view()
    [batch] = FileRows(((path, ()),), 1).read(rows.column_names)
    assert batch.schema.types == rows.schema.types
    assert batch.to_pylist() == rows.to_pylist()


def test_what_a_killed_run_stored_is_removed_by_the_next_one_of_its_kind(tmp_path: Path) -> None:
    paths, rows = LakePaths(str(tmp_path)), draw_rows(Random(1), 5)
    killed, other = FileStore.of(paths, "compact"), FileStore.of(paths, "mirror")
    killed.put([rows])
    other.put([rows])
    with FileStore.of(paths, "compact") as store:
        store.put([rows])
        assert not Path(killed.folder).exists()
        assert Path(store.folder).exists()
    assert [place.name for place in (tmp_path / "_staging").iterdir()] == [Path(other.folder).name]


@pytest.mark.parametrize("seed", seeds(20))
def test_packed_parts_have_all_rows_in_order_and_at_most_the_bytes_of_a_task(seed: int) -> None:  # 34
    draw = Random(seed)
    parts: list[Rows] = [MemoryRows(draw_rows(draw, draw.randint(0, 20))) for _ in range(draw.randint(0, 9))]
    most = draw.choice((1, 300, 1000, 1 << 20))
    packs = pack_rows(parts, most)
    assert list_all(packs) == list_all(parts)
    assert [run.rows for pack in packs for run in pack.list_runs()] == [
        r.rows for part in parts for r in part.list_runs()
    ]
    single = {part.bytes for part in parts}
    assert all(pack.bytes <= most or pack.bytes in single for pack in packs)
    # Two neighbours would be too much for one task.
    assert all(one.bytes + two.bytes > most or not one.bytes for one, two in pairwise(packs))


@pytest.mark.parametrize(("most", "pieces"), [(1, 5), (210, 3), (1 << 20, 1)])
def test_rows_in_memory_are_cut_between_batches(most: int, pieces: int) -> None:
    # U-06: a task of this process copies its rows.
    table = pa.concat_tables(draw_rows(Random(seed), 4) for seed in range(5))
    cut = cut_rows(MemoryRows(table), most)
    assert len(cut) == pieces
    assert list_all(cut) == table.to_pylist()


def test_rows_in_files_are_cut_between_row_groups(tmp_path: Path) -> None:
    # U-06: one large transaction is one file.
    table = draw_rows(Random(1), 9)
    rows = FileRows(((write_file(tmp_path / "a", table, 2), ()),), 900)
    cut = cut_rows(rows, 400)
    assert [one.bytes for one in cut] == [400, 400, 100]
    assert list_all(cut) == list_all([rows])
    assert cut_rows(rows, 900) == [rows]
    assert [one.bytes for one in cut_rows(rows, 1)] == [200, 200, 200, 200, 100]
