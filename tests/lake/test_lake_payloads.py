"""Payloads in the files of `binlog`: each transaction of a range is read once and whole, wherever its chunks are."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.examples import seeds

from binlake.lake.payloads import PayloadRange, join_chunks

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


@pytest.mark.parametrize("seed", seeds(40))
def test_each_transaction_is_read_once_and_whole(seed: int) -> None:  # DESIGN 2: large payloads in chunks
    draw = Random(seed)
    rows, whole = transactions(draw)
    draw.shuffle(rows)
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=draw.randint(1, 8))
    lo, hi = draw.randint(0, 5), draw.randint(5, 30)
    without = frozenset(ts for ts in whole if draw.random() < 0.1)
    chunked = frozenset(row["commit_ts"] for row in rows if row["chunk"] and row["kind"] == "dml")
    expected = {ts: payload for ts, payload in whole.items() if lo < ts <= hi and ts not in without}
    range_ = PayloadRange(lo, hi, without, chunked)
    found: dict[int, bytes] = {}
    read = [*map(range_.select_wanted, batches), *(join_chunks(batches, ts) for ts in range_.joined)]
    for batch in read:
        assert batch.schema.names == ["commit_ts", "start_ts", "payload"]
        for row in batch.to_pylist():
            assert row["commit_ts"] not in found
            assert row["start_ts"] == 100 + row["commit_ts"]
            found[row["commit_ts"]] = row["payload"]
    assert found == expected
