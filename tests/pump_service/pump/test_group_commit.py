"""The thread that commits serves every writer: one that cannot be told its outcome holds up nobody."""

from __future__ import annotations

from pathlib import Path

from pump_helpers import prewrite

from binlake.errors import BinlakeError
from pump_service.pump.storage import Storage


def test_a_writer_that_cannot_be_told_does_not_end_the_commits_of_others(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "pump")

    def broken(error: BinlakeError | None) -> None:
        raise RuntimeError(f"the loop is closed ({error})")

    storage.submit(prewrite(1).SerializeToString(), broken)
    storage.append(prewrite(2).SerializeToString()).result(60)
    assert storage.in_flight_bytes == 0
    storage.close()
