"""Payloads in the files of `binlog`: each transaction of a range is read once and whole, wherever its chunks are."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.examples import seeds

from binlake.lake import payloads
from binlake.lake.payloads import PayloadRange

SCHEMA = pa.schema(
    [("commit_ts", pa.int64()), ("start_ts", pa.int64()), ("chunk", pa.int32()), ("kind", pa.string()),
     ("payload", pa.binary())]
)  # fmt: skip


def transactions(draw: Random) -> tuple[list[dict[str, Any]], dict[int, bytes]]:
    """(rows of `binlog`, the payload of each transaction of row changes)."""
    rows, whole = [], {}
    for ts in range(1, draw.randint(2, 30)):
        chunks = [draw.randbytes(draw.randint(0, 20)) for _ in range(draw.choice([1, 1, 1, 3]))]
        kind = draw.choice(["dml", "dml", "dml", "ddl"])
        rows += [
            {"commit_ts": ts, "start_ts": 100 + ts, "chunk": number, "kind": kind, "payload": payload}
            for number, payload in enumerate(chunks)
        ]
        whole |= {ts: b"".join(chunks)} if kind == "dml" else {}
    return rows, whole


def files_of(draw: Random, folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Write the rows in any order to several files, in row groups of any size."""
    draw.shuffle(rows)
    files: list[str] = []
    while rows:
        count, place = draw.randint(1, len(rows)), folder / f"{len(files)}.parquet"
        part, rows = rows[:count], rows[count:]
        pq.write_table(pa.Table.from_pylist(part, SCHEMA), place, row_group_size=draw.randint(1, 8))
        files.append(str(place))
    return files


@pytest.mark.parametrize("seed", seeds(40))
def test_each_transaction_is_read_once_and_whole(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # DESIGN 2: large payloads in chunks
    draw = Random(seed)
    rows, whole = transactions(draw)
    monkeypatch.setattr(payloads, "SHARE_BYTES", draw.choice([1, 1 << 20]))
    lo, hi = draw.randint(0, 5), draw.randint(5, 30)
    without = frozenset(ts for ts in whole if draw.random() < 0.1)
    chunked = frozenset(row["commit_ts"] for row in rows if row["chunk"] and row["kind"] == "dml")
    expected = {ts: payload for ts, payload in whole.items() if lo < ts <= hi and ts not in without}
    range_ = PayloadRange(lo, hi, without, chunked)
    found: dict[int, bytes] = {}
    for share in range_.split_into_shares(files_of(draw, tmp_path, rows)):
        for batch in range_.read(share):
            assert batch.schema.names == ["commit_ts", "start_ts", "payload"]
            for row in batch.to_pylist():
                assert row["commit_ts"] not in found
                assert row["start_ts"] == 100 + row["commit_ts"]
                found[row["commit_ts"]] = row["payload"]
    assert found == expected
