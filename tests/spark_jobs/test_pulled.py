"""The driver's own pull: all pumps side by side, within its room, and none goes on when another has failed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest

from binlake.errors import SourceUnavailable
from spark_jobs import pump_source
from spark_jobs.pulled import pull_here
from spark_jobs.pump_source import ARROW_SCHEMA, PumpPull, pull_batches


def batch(ts: int, size: int = 1000) -> pa.RecordBatch:
    row = dict.fromkeys(ARROW_SCHEMA.names) | {"commit_ts": ts, "kind": "dml", "payload": b"x" * size}
    return pa.RecordBatch.from_pylist([row], schema=ARROW_SCHEMA)


@dataclass
class Pumps:
    """As PumpPull: what each pump gives."""

    streams: list[Iterator[pa.RecordBatch]]

    @property
    def pumps(self) -> list[Any]:
        return self.streams

    def of(self, place: int) -> Iterator[pa.RecordBatch]:
        return self.streams[place]


def pulled(most: int, *streams: Iterator[pa.RecordBatch]) -> pa.Table | None:
    return pull_here(cast("PumpPull", Pumps(list(streams))), most)


def endless() -> Iterator[pa.RecordBatch]:
    return (batch(ts) for ts in itertools.count(1))


def failing() -> Iterator[pa.RecordBatch]:
    yield batch(1)
    raise SourceUnavailable("gone", where={"pump": "p2"})


def test_all_parts_come_together_and_no_pump_is_nothing() -> None:
    found = pulled(1 << 20, iter([batch(1), batch(3)]), iter([batch(2)]))
    assert found is not None
    assert found["commit_ts"].to_pylist() == [1, 3, 2]
    none = pulled(1 << 20)
    assert none is not None
    assert none.num_rows == 0


def test_what_has_no_room_is_left_to_the_workers() -> None:
    assert pulled(50_000, endless(), iter([batch(1)])) is None


def test_a_pump_that_fails_stops_the_others_and_is_named() -> None:
    with pytest.raises(SourceUnavailable, match="pump=p2"):
        pulled(1 << 50, endless(), failing())


def test_a_large_transaction_is_cut_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def pull(self, lo: int, until_ts: int) -> Iterator[tuple[int, int, bytes]]:
            yield lo + 1, lo, b"\x00" * 35
            yield until_ts, until_ts, b""

    monkeypatch.setattr(pump_source, "PumpReader", Reader)
    monkeypatch.setattr(pump_source, "CHUNK_BYTES", 10)
    monkeypatch.setattr(pump_source, "BATCH_BYTES", 20)
    batches = list(pull_batches("p", "host:1", 1, 5, 9, 1.0))
    assert [one["chunk"].to_pylist() for one in batches] == [[0, 1], [2, 3, 0]]
    assert pa.Table.from_batches(batches)["kind"].to_pylist()[-1] == "proof"
