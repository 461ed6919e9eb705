"""Two feeders of one PD, from before a second one was refused: a window never takes rows of one for rows of the other.

Each numbers its tables itself, from the same number on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.faultworld import until
from support.feeding import FedCluster
from support.feedload import run_windows
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from binlake.errors import Permanent
from binlake.pump_service.feeder.registration import Registration
from binlake.pump_service.feeder.service import STATUS_PATH, Feeder
from binlake.pump_service.feeder.settings import FeederFile
from deploy.local.ports import free_port

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with mariadb_in_memory(MariaDb.list_source_options()) as made:
        yield made


def test_rows_of_a_second_feeder_are_refused(
    server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registration, "_claim_catalog", lambda _: None)
    first, second = (
        {"name": name, "host": server.host, "port": server.port, "start": {"mode": "now"}, "ignore-tables": [ignored]}
        for name, ignored in (("one", "two.*"), ("two", "one.*"))
    )
    with FedCluster(tmp_path, server, [first]) as cluster:
        cluster.start_feeder()
        execute(server, "CREATE DATABASE one", "CREATE TABLE one.t (id INT PRIMARY KEY)")
        cluster.follow(server)
        addr = f"127.0.0.1:{free_port()}"
        more = {"name": "second", "data-dir": str(tmp_path / "second"), "status-addr": addr, "source": [second]}
        with serving(Feeder(FeederFile.model_validate(cluster.settings | more))):
            wait_for_second(addr, cluster)
            execute(server, "CREATE DATABASE two", "CREATE TABLE two.u (id INT PRIMARY KEY)")
            execute(server, "INSERT INTO two.u VALUES (1)")
            cluster.follow(server)
            wait_for_second(addr, cluster)
            urls = f"http://{cluster.status_addr},http://{addr}"
            both = {"pd-urls": [cluster.driver.url], "status-url": urls, "timeout-s": 5}
            with pytest.raises(Permanent, match=r"source\.status-url names more than the feeder feeder"):
                run_windows(cluster, target, source=both)
            with pytest.raises(Permanent, match="the pumps have DDL of another feeder"):
                run_windows(cluster, target)
        assert not rows(mariadb, "SELECT 1 FROM information_schema.tables WHERE table_schema IN ('one', 'two')")


@contextmanager
def serving(feeder: Feeder) -> Iterator[None]:
    thread = threading.Thread(target=feeder.run)
    thread.start()
    try:
        yield
    finally:
        feeder.stop()
        thread.join()


def wait_for_second(addr: str, cluster: FedCluster) -> None:
    """Wait until the feeder at `addr` has published what the first one has."""
    wanted = cluster.status()["sources"][0]["gtids"]

    def look() -> bool:
        try:
            page = httpx.get(f"http://{addr}{STATUS_PATH}", trust_env=False).json()
        except httpx.HTTPError:
            return False
        return page["unsent_batches"] == 0 and [one.get("gtids") for one in page["sources"]] == [wanted]

    until("the second feeder", look)
