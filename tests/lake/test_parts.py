"""Files that tasks write for `mutation`, and the shares of `binlog` that they read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from binlake import tso
from binlake.lake import payloads
from binlake.lake.parts import write_parts
from binlake.lake.payloads import PayloadRange
from binlake.lake.tables import BINLOG, MUTATION
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


def write_binlog_file(path: Path, numbers: range) -> str:
    """A file of `binlog` with two rows per group; every fourth row is a DDL."""
    columns = {"commit_ts": list(numbers), "start_ts": [n - 1 for n in numbers], "chunk": [0] * len(numbers)}
    columns["kind"] = ["ddl" if n % 4 == 0 else "dml" for n in numbers]  # type: ignore[misc]
    columns["payload"] = [b"p%d" % n for n in numbers]  # type: ignore[misc]
    schema = pa.schema([BINLOG.build_arrow_schema().field(name) for name in columns])
    pq.write_table(pa.table(columns, schema), path, row_group_size=2)
    return str(path)


def test_shares_cover_each_row_change_of_the_range_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write_binlog_file(tmp_path / "b", range(11, 21)), write_binlog_file(tmp_path / "a", range(1, 11))]
    wanted = PayloadRange(3, 14, frozenset({6}))
    monkeypatch.setattr(payloads, "SHARE_BYTES", 1)
    shares = wanted.split_into_shares(files)
    # Groups outside the range are not read: (1, 2) and all from 15 on.
    assert [[(Path(span.file).name, span.groups) for span in share.spans] for share in shares] == [
        [("a", (1,))], [("a", (2,))], [("a", (3,))], [("a", (4,))], [("b", (0,))], [("b", (1,))]
    ]  # fmt: skip
    found = [row for share in shares for part in wanted.read(share) for row in part.to_pylist()]
    assert found == [{"commit_ts": n, "start_ts": n - 1, "payload": b"p%d" % n} for n in (5, 7, 9, 10, 11, 13, 14)]
    monkeypatch.setattr(payloads, "MOST_SHARES", 2)
    assert len(wanted.split_into_shares(files)) == 2
    assert PayloadRange(20, 30).split_into_shares(files) == []
