"""Which rows of the ledger a new window keeps: a batch with such a row is not applied again."""

from __future__ import annotations

from typing import cast

import pytest
from support.mariadb import MariaDb, execute, rows
from support.positions import accept_rows
from support.windows import Window, apply

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict
from binlake.target import TargetSession
from binlake.target.claim.progress import AppliedAs, WindowLedger, is_recorded

pytestmark = pytest.mark.mariadb


def windows(server: MariaDb) -> list[tuple[int, int]]:
    found = rows(server, "SELECT DISTINCT lo, hi FROM tidb_binlog.binlake_ledger WHERE task = 'shop' ORDER BY lo")
    return [(int(lo), int(hi)) for lo, hi in found]


def test_new_window_keeps_the_ledger_of_the_previous_one(server: MariaDb, target: TargetSection) -> None:
    for lo in (0, 100, 200):
        apply(target, Window(lo, lo + 100).log(f"line {lo}"))
    assert windows(server) == [(100, 200), (200, 300)]


def test_new_window_keeps_the_ledger_of_other_replications(server: MariaDb, target: TargetSection) -> None:
    apply(target, Window(0, 100).log("first"))
    execute(server, "UPDATE tidb_binlog.binlake_ledger SET task = 'other'")
    apply(target, Window(100, 200).log("second"))
    apply(target, Window(200, 300).log("third"))
    assert rows(server, "SELECT lo FROM tidb_binlog.binlake_ledger WHERE task = 'other'") == [(0,)]


def test_ledger_ahead_of_a_restored_checkpoint_skips_no_rows(server: MariaDb, target: TargetSection) -> None:
    # The checkpoint and the rows were restored, but not the ledger: the same batches have the same digests.
    apply(target, Window(0, 100).log("first"))
    apply(target, Window(100, 200).log("second"))
    execute(
        server,
        "DELETE FROM app.log WHERE line = 'second'",
        "UPDATE tidb_binlog.checkpoint SET checkPoint = REPLACE(checkPoint, '\"commitTS\":200', '\"commitTS\":100')",
    )
    accept_rows(server)
    apply(target, Window(100, 200).log("second"))
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("first",), ("second",)]


def test_ledger_rows_are_written_once_in_few_statements() -> None:
    written: list[int] = []

    class Counting:
        """Counts the rows of each statement."""

        def write(self, _sql: str, arguments: list[object]) -> None:
            written.append(len(arguments) // 9)

    session, ledger = cast(TargetSession, Counting()), WindowLedger("s", "shop", 0, 100)
    (batch,) = Window(0, 100).log("line").written
    for _ in range(501):
        ledger.add(session, batch, AppliedAs.ALONE)
    assert written == [500]
    ledger.flush(session)
    ledger.flush(session)
    assert written == [500, 1]


def test_another_batch_under_the_same_number_is_refused() -> None:
    (batch,) = Window(0, 100).log("line").written
    place = (int(batch.phase), batch.batch)
    assert is_recorded(batch, {place: batch.digest}) is True
    assert is_recorded(batch, {}) is False
    with pytest.raises(CheckpointConflict, match="the ledger has another batch with this number"):
        is_recorded(batch, {place: "another"})
