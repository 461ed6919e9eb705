"""The messages of a window are read in order and in bounded parts, after their digest is verified."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.examples import seeds

from binlake.common import rowhash
from binlake.errors import ImmutableWindow
from binlake.feed import sealed
from binlake.feed.manifest import ChangePosition, EncodeManifest
from binlake.feed.messages import ORDER
from binlake.feed.sealed import find_last_position, read_sealed, split_changes
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MESSAGE

FEED = "f"
PART = 4000


def message(commit_ts: int, seq: int, part: int, value: bytes) -> dict[str, object]:
    names = {"window": "0-900", "db": "d", "table": "t", "topic": "t", "op": "c", "hash": 0}
    names |= {"key_schema": "k", "value_schema": "v"}
    return names | {
        "commit_ts": commit_ts, "start_ts": commit_ts - 1, "seq": seq, "part": part, "key": b"k", "value": value,
    }  # fmt: skip


def draw_messages(seed: int) -> list[dict[str, object]]:
    """Transactions of 1 to 60 changes, some of which have two messages."""
    draw = random.Random(seed)
    found = []
    for commit_ts in range(10, 300, 10):
        for seq in range(draw.choice((1, 2, 60))):
            parts = draw.choice(((1,), (1,), (0, 1)))
            found += [message(commit_ts, seq, part, draw.randbytes(draw.choice((0, 10, 300)))) for part in parts]
    return found


def store(folder: Path, rows: list[dict[str, object]], files: int) -> tuple[LakePaths, EncodeManifest]:
    """Write `rows` to that many files of the feed's table; return what encode seals of them."""
    paths = LakePaths(str(folder))
    table = pa.Table.from_pylist(rows, MESSAGE.build_arrow_schema())
    for number in range(files):
        part = table.take(pa.array(range(number, table.num_rows, files), pa.int64()))
        write_deltalake(paths.locate_table(f"feed/{FEED}"), part, mode="append", partition_by=["window"])
    digest = rowhash.compute_digest(rowhash.fold(rowhash.hash_rows(table, table.column_names)))
    return paths, EncodeManifest("r", FEED, 0, 900, table.num_rows, 0, digest)


def place(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in ORDER)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "PART_BYTES", PART)
    monkeypatch.setattr(sealed, "_SAMPLE_BYTES", 100)


# S2-02, R-31
@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(4))
def test_each_message_is_read_once_in_order_from_any_file(tmp_path: Path, seed: int) -> None:
    rows = draw_messages(seed)
    wanted = sorted(rows, key=place)
    random.Random(seed).shuffle(rows)
    paths, manifest = store(tmp_path, rows, files=3)
    parts = list(read_sealed(paths, manifest, None))
    assert [row for part in parts for row in part.to_pylist()] == wanted
    assert len(parts) > 3
    # A part may exceed its size by one change, and by what the samples miss.
    assert max(part.nbytes for part in parts) < 3 * PART
    for part in (wanted[7], wanted[len(wanted) // 2], wanted[-1]):
        after = ChangePosition(*place(part)[:3])  # type: ignore[arg-type]
        found = [row for part in read_sealed(paths, manifest, after) for row in part.to_pylist()]
        assert found == [row for row in wanted if place(row)[:3] > after]


def test_window_of_one_part_is_read_once(tmp_path: Path) -> None:
    rows = [message(10, seq, 1, b"v") for seq in range(20)]
    paths, manifest = store(tmp_path, rows[::-1], files=2)
    (part,) = read_sealed(paths, manifest, None)
    assert part.to_pylist() == rows
    assert find_last_position(part) == ChangePosition(10, 9, 19)
    (rest,) = read_sealed(paths, manifest, ChangePosition(10, 9, 4))
    assert rest.to_pylist() == rows[5:]
    assert list(read_sealed(paths, manifest, ChangePosition(10, 9, 19))) == []


def test_altered_window_yields_no_message(tmp_path: Path) -> None:
    rows = draw_messages(5)
    paths, manifest = store(tmp_path, rows, files=2)
    store(tmp_path, rows[:1], files=1)
    with pytest.raises(ImmutableWindow, match="0-900"):
        next(read_sealed(paths, manifest, None))


def test_deletion_of_a_moved_key_is_sent_with_its_row() -> None:
    rows = [message(10, seq, part, b"v") for seq in range(5) for part in (0, 1)]
    table = pa.Table.from_pylist(rows, MESSAGE.build_arrow_schema())
    assert [part.num_rows for part in split_changes(table, 3)] == [4, 4, 2]
