"""The thread that commits serves every writer: one that cannot be told its outcome holds up nobody."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pump_helpers import prewrite, store, until

from binlake.errors import BinlakeError
from pump_service.pump.record import Pointer
from pump_service.pump.storage import Storage


def test_a_failing_callback_of_a_writer_does_not_end_the_commits_of_others(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "pump")

    def broken(error: BinlakeError | None) -> None:
        raise RuntimeError(f"the loop is closed ({error})")

    storage.submit(prewrite(1).SerializeToString(), broken)
    storage.append(prewrite(2).SerializeToString()).result(60)
    assert storage.in_flight_bytes == 0
    storage.close()


def test_what_comes_while_the_index_rests_shares_one_batch_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A batch of LevelDB for each write was a sixth of what a lonely writer costs; a stop does not wait for the pause.
    monkeypatch.setattr("pump_service.pump.follower._PACE_S", 3600.0)
    storage = Storage(tmp_path / "pump")
    write, batches = storage.index.write, list[list[int]]()

    def noted(puts: Iterable[tuple[int, Pointer]], **more: Any) -> None:
        batches.append([ts for ts, _ in puts])
        write(puts, **more)

    monkeypatch.setattr(storage.index, "write", noted)
    store(storage, prewrite(10))
    until(lambda: bool(batches), "the first is indexed at once")
    for ts in (20, 30, 40):
        store(storage, prewrite(ts))
    storage.close()
    assert [batch for batch in batches if batch] == [[10], [20, 30, 40]]


def test_outcomes_of_a_batch_come_before_its_end(tmp_path: Path) -> None:
    # Who answers wakes up once a batch: an outcome after it would wait for the next one.
    storage, told = Storage(tmp_path / "pump"), list[str]()
    storage.on_batch(lambda: told.append("over"))
    storage.append(prewrite(1).SerializeToString()).result(60)
    storage.submit(prewrite(2).SerializeToString(), lambda error: told.append(f"told {error}"))
    storage.close()
    assert told == ["over", "told None", "over"]
