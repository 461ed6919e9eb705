"""What goes on after a demo that is kept: a second replication, `live`, with a small load at the present time.

The replayed capture is over and its clock is that of its recording, so its page stands still. `live` has its own
placement driver, pump and generator; it uses the demo's target and Airflow, and no Spark.
"""

from __future__ import annotations

import time
from pathlib import Path

from binlake.config import Replication, load_replication
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from deploy.local.airflow_client import AirflowClient
from deploy.local.demo_report import Report
from deploy.local.mariadb import MariaDb
from deploy.local.process import ProcessError
from deploy.local.source import WorkloadSource

NAME = "live"
RATE = 3.0
"""Transactions a second."""
_SECONDS = 7 * 86_400.0
_PATIENCE_S = 180.0
_POLL_S = 0.5


class LiveLoad:
    """The replication `live`; its files are below `folder`, its configuration is beside the demo's.

    `lake`: the section of its lake.
    """

    def __init__(self, folder: Path, target: MariaDb, replications: Path, lake: str) -> None:
        self._lake = lake
        self._target = target
        self._file = replications / f"{NAME}.toml"
        self._source = WorkloadSource(folder, pumps=1)

    def start(self, client: AirflowClient, report: Report) -> None:
        """Start source, load and DAG; return when the target has rows. Raises ProcessError."""
        report.say(f"starting the replication `{NAME}`: {RATE:g} transactions a second, which go on")
        self._source.start()
        self._source.feed(RATE, _SECONDS)
        self._write_replication()
        report.say(f"waiting for Airflow to read the DAG `{NAME}`, then for its first rows in the target")
        with report.wait_for(f"the first rows of `{NAME}`"):
            client.wait_for_dag(NAME, _PATIENCE_S)
            client.set_paused(NAME, False)
            rows = self._wait_for_rows(load_replication(self._file))
        report.say(f"`{NAME}` runs: its first window with rows has applied {rows}")

    def stop(self) -> None:
        """End its servers."""
        self._source.stop()

    def _wait_for_rows(self, replication: Replication) -> int:
        log, until = WindowLog(LakePaths.of(replication)), time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            applied = log.read_newest(("finalize",), 10) if log.exists() else []
            if rows := sum(event["rows"] for event in applied if event["state"] == "done"):
                return rows
            time.sleep(_POLL_S)
        raise ProcessError(f"the target has got no row of `{NAME}` within {_PATIENCE_S:.0f} s")

    def _write_replication(self) -> None:
        self._file.write_text(
            f"""# Written by `make demo KEEP=1`.
name = "{NAME}"
initial-commit-ts = "0"

[source]
pd-urls = "{self._source.pd_url}"
status-url = "{self._source.status_url}"
cluster-id = "{self._source.cluster_id}"

{self._lake}
[window]
engine = "local"

[target]
db-type = "mariadb"
host = "{self._target.host}"
port = {self._target.port}
user = "{self._target.user}"
checkpoint-schema = "tidb_binlog_live"

[mirror]
enabled = true

[airflow]
schedule = "every 5s"
layout = "fused"
retry-delay-s = 2

[airflow.maintain]
schedule = ""
""",
            encoding="utf-8",
        )
