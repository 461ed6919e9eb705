"""Files that tasks write for `mutation`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fulldisk import files_of_at_most

from binlake import tso
from binlake.lake.parts import write_parts
from binlake.lake.tables import MUTATION
from binlake.rows.codec import MUTATION_SCHEMA

MIDNIGHT_MS = 1_795_305_600_000


def row(seq: int, ms: int, name: str = "n") -> dict[str, object]:
    """A row of `mutation`; rows of the same millisecond have the same commit_ts."""
    ts = tso.compose(ms)
    return {
        "commit_ts": ts, "start_ts": ts - 1, "seq": seq, "commit_date": tso.to_datetime(ts).date(), "op": "insert",
        "table_id": 7, "key": f'["{seq}"]', "after": [("id", str(seq)), (name, None)],
    }  # fmt: skip


def batch(*rows: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=MUTATION_SCHEMA)


def test_rows_of_two_days_are_two_files_with_statistics(tmp_path: Path) -> None:
    # DESIGN 2: partitions by day; a range of commit_ts is found by Delta's statistics
    rows = [row(0, MIDNIGHT_MS - 1), row(1, MIDNIGHT_MS), row(2, MIDNIGHT_MS + 5)]
    parts = write_parts(str(tmp_path), MUTATION, [batch(*rows[:2]), batch(rows[2])])
    days = [{"commit_date": "2026-11-21"}, {"commit_date": "2026-11-22"}]
    assert [(part.values, part.rows) for part in parts] == list(zip(days, (1, 2), strict=True))
    stats = json.loads(parts[1].stats)
    first, last = tso.compose(MIDNIGHT_MS), tso.compose(MIDNIGHT_MS + 5)
    assert stats == {
        "numRecords": 2,
        "minValues": {"commit_ts": first, "start_ts": first - 1, "table_id": 7},
        "maxValues": {"commit_ts": last, "start_ts": last - 1, "table_id": 7},
        "nullCount": {"commit_ts": 0, "start_ts": 0, "table_id": 0},
    }
    place = tmp_path / parts[1].path
    assert (place.parent.name, place.stat().st_size) == ("commit_date=2026-11-22", parts[1].size)
    found = pq.ParquetFile(place).read()
    assert found.to_pylist() == pa.Table.from_batches([batch(*rows[1:])]).drop_columns(["commit_date"]).to_pylist()
    # Writing the same rows again makes other files: an uncommitted try touches no file of another.
    assert not {part.path for part in parts} & {
        part.path for part in write_parts(str(tmp_path), MUTATION, [batch(*rows)])
    }


def test_error_among_the_rows_leaves_no_file(tmp_path: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield batch(row(0, MIDNIGHT_MS - 1), row(1, MIDNIGHT_MS))
        raise ValueError("a damaged row")

    with pytest.raises(ValueError, match="a damaged row"):
        write_parts(str(tmp_path), MUTATION, rows())
    assert list(tmp_path.rglob("*.parquet")) == []
    assert write_parts(str(tmp_path), MUTATION, [batch()]) == []


@pytest.mark.parametrize("room", [0, 100, 3000, 20_000])
def test_full_disk_is_the_error_itself_and_leaves_no_file(tmp_path: Path, room: int) -> None:
    # found by drawn faults of the storage; the disk stays full while files are closed
    rows = [row(seq, MIDNIGHT_MS + seq, os.urandom(9).hex()) for seq in range(9000)]
    with files_of_at_most(room), pytest.raises(OSError, match="File too large") as full:
        write_parts(str(tmp_path), MUTATION, [batch(*rows[:4500]), batch(*rows[4500:])])
    assert full.value.errno == errno.EFBIG
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []
