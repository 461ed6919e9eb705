"""Replications whose surroundings are real: a PD, a status port, a lake; each in another state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.fakefeeder import FakeFeeder
from support.replication_files import write_replication

from binlake import tso
from binlake.config import load_replication
from binlake.config.load import FOLDER_ENV
from binlake.errors import TargetUnavailable
from binlake.lake.failures import record_failure
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pump_service.pd import PlacementDriver


@dataclass(frozen=True)
class Fleet:
    """The replications `crm` (well), `shop` (blocked by a pump) and `orders` (its target fails), in one folder."""

    folder: Path
    feeder: FakeFeeder
    pd_url: str

    def write(self, name: str, age_s: float) -> WindowLog:
        """A replication without a target server and mirrors whose only window is `age_s` old."""
        path = write_replication(
            self.folder,
            name,
            source=f'pd-urls = "{self.pd_url}"\nstatus-url = "{self.feeder.port.url}"',
            lake=f'path = "{self.folder / name}"',
            target=None,
            mirror="enabled = true",
        )
        log = WindowLog(LakePaths.of(load_replication(path, secrets=False)))
        hi = tso.compose(int((time.time() - age_s) * 1000))
        for stage in ("land", "mirror"):
            log.record(WindowEvent(stage, hi - 1, hi, "done", 3, 0.5, "r"))
        return log


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    feeder = FakeFeeder()
    with PlacementDriver(folder / "pd", cluster_id=7) as driver, feeder.port:
        made = Fleet(folder, feeder, driver.url)
        made.write("crm", 4)
        lo = tso.compose(int((time.time() - 3600 * 5) * 1000))
        made.write("shop", 3600 * 5).record(
            WindowEvent("plan", lo, lo, "blocked", 0, 0.1, "r", "", "pump-2", {"reason": "pump-2 does not answer"})
        )
        record_failure(made.write("orders", 3600 * 26), "mirror", TargetUnavailable("the disk is full"), run_id="r9")
        yield made


@pytest.fixture(autouse=True)
def _in_folder(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_ENV, str(fleet.folder))
