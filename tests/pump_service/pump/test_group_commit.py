"""The group-commit thread serves every writer: if one writer's callback fails, all others are still answered."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pump_helpers import prewrite, store, until

from binlake.errors import BinlakeError
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.storage import PumpStorage


def test_a_failing_callback_of_a_writer_does_not_end_the_commits_of_others(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path / "pump")

    def broken(error: BinlakeError | None) -> None:
        raise RuntimeError(f"the loop is closed ({error})")

    storage.submit(prewrite(1).SerializeToString(), broken)
    storage.append(prewrite(2).SerializeToString()).result(60)
    assert storage.in_flight_bytes == 0
    storage.close()


def test_entries_that_arrive_during_the_pause_share_one_index_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A LevelDB batch for each write was a sixth of the cost of a single writer. A stop does not wait for the pause.
    monkeypatch.setattr("binlake.pump_service.pump.follower._PACE_S", 3600.0)
    storage = PumpStorage(tmp_path / "pump")
    write, batches = storage.index.write, list[list[int]]()

    def record_write(puts: Iterable[tuple[int, Pointer]], **more: Any) -> None:
        batches.append([ts for ts, _ in puts])
        write(puts, **more)

    monkeypatch.setattr(storage.index, "write", record_write)
    store(storage, prewrite(10))
    until(lambda: bool(batches), "the first is indexed at once")
    for ts in (20, 30, 40):
        store(storage, prewrite(ts))
    storage.close()
    assert [batch for batch in batches if batch] == [[10], [20, 30, 40]]


def test_outcomes_of_a_batch_are_reported_before_the_batch_is_over(tmp_path: Path) -> None:
    # The answering thread wakes up once a batch: an outcome after that would wait for the next batch.
    storage, events = PumpStorage(tmp_path / "pump"), list[str]()
    storage.on_batch(lambda: events.append("over"))
    storage.append(prewrite(1).SerializeToString()).result(60)
    storage.submit(prewrite(2).SerializeToString(), lambda error: events.append(f"events {error}"))
    storage.close()
    assert events == ["over", "events None", "over"]
