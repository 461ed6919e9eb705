"""The sources on a replication's page: what a feeder says is shown, and a silent one makes the lag unknown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fakefeeder import FakeFeeder
from support.replication_files import write_replication

from binlake import tso
from binlake.cli import run
from binlake.cluster.placement import EtcdClient
from binlake.config import load_replication
from binlake.health.surroundings import read_tidb_heartbeats
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

NASTY = "<b>refused</b>"


@pytest.fixture
def feeder() -> Iterator[FakeFeeder]:
    made = FakeFeeder()
    with made.port:
        yield made


def test_page_shows_what_the_feeder_says_and_no_lag_without_it(
    server: httpx.Client,
    folder: Path,
    bearer: dict[str, str],
    feeder: FakeFeeder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_replication(folder, "fed", source=f'status-url = "{feeder.port.url}"\npd-urls = "http://127.0.0.1:1"')
    log, now = WindowLog(LakePaths.of(load_replication(path, secrets=False))), tso.compose(time.time_ns() // 1_000_000)
    for stage in ("land", "finalize"):
        log.record(WindowEvent(stage, now - 1, now, "done", 3, 0.5, "r"))

    def read() -> tuple[dict[str, Any], str]:
        view = server.get("/binlake/api/dags/fed", headers=bearer).json()
        return view, server.get("/binlake/dags/fed", headers=bearer).text

    view, page = read()
    assert (view["source"]["heard"], view["sinks"]["sql"]["lag_seconds"] is not None) == (True, True)
    for text in ("shard-1", "db1:3306", "0-1-42", "up to date"):
        assert text in page
    feeder.source |= {"heard": False, "trouble": NASTY}
    view, page = read()
    assert (view["state"], view["landed"]["lag_seconds"], view["sinks"]["sql"]["lag_seconds"]) == (
        "unreachable", None, None,
    )  # fmt: skip
    # `binlake status` computes the same; only it may name the file.
    assert run(["status", str(path), "--output", "json"]) == 5
    # In this process the fake feeder logs to the same output.
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])[0]
    assert [(one["state"], one["text"]) for one in shown["problems"]] == [
        (one["state"], one["text"]) for one in view["problems"]
    ]
    assert (shown["state"], str(path) in json.dumps(view)) == (view["state"], False)
    assert f"the source shard-1 makes no progress: {NASTY}" in [one["text"] for one in view["problems"]]
    assert ("lag unknown" in page, "&lt;b&gt;refused" in page, NASTY in page) == (True, True, False)
    feeder.port.stop()
    view, page = read()
    assert (view["source"]["heard"], view["source"]["silent"], view["landed"]["lag_seconds"]) == (False, 1, None)
    assert "do not answer" in page
    listed = server.get("/binlake/api", headers=bearer).json()["replications"]
    assert [one["state"] for one in listed if one["name"] == "fed"] == ["unreachable"]


class Topology:
    """The keys that TiDB servers have in PD's etcd."""

    def __init__(self, **servers: bytes) -> None:
        self.servers = servers

    def read_prefix(self, prefix: bytes) -> tuple[list[Any], int]:
        from binlake.wire import etcd_pb2 as pb

        return [pb.KeyValue(key=prefix + key.encode(), value=value) for key, value in self.servers.items()], 1


def test_heartbeats_of_tidb_servers_are_read_from_pd() -> None:
    entries = {"10.0.0.1:4000/ttl": str(time.time_ns() - 20 * 10**9).encode(), "10.0.0.1:4000/info": b"{}",
               "10.0.0.2:4000/ttl": b"odd"}  # fmt: skip
    etcd: EtcdClient = Topology(**entries)  # type: ignore[assignment]
    ages = read_tidb_heartbeats(etcd)
    assert list(ages) == ["10.0.0.1:4000"]
    assert 20 <= ages["10.0.0.1:4000"] < 60
