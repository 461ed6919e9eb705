"""While a load that continues waits for the source's log, its progress says why."""

from __future__ import annotations

import io
import threading

import pytest

from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.publisher import Stopped
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.catchup import CatchUp
from binlake.pump_service.feeder.snapshot.loadstate import SnapshotPosition
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from deploy.local.ports import HOST, free_port


def test_a_log_that_cannot_be_reached_is_reported() -> None:
    port, progress, stopped = free_port(), SnapshotProgress({}, 0), threading.Event()
    source = SourceFile.model_validate({"name": "s1", "host": HOST, "port": port})

    def report(reason: str) -> None:
        progress.report_trouble(reason)
        stopped.set()

    snapshots = [
        SnapshotPosition(BinlogPosition(file="log.000001", offset=number, gtids=f"0-1-{number}"), "1")
        for number in (4, 8)
    ]
    catch_up = CatchUp(
        source, 4_100_000, Flavor.MARIADB, snapshots, {}, Catalog([], {}, []), io.StringIO, stopped, report=report  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(Stopped):
        list(catch_up.read())
    assert f"{HOST}:{port}" in progress.trouble
