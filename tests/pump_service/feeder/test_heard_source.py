"""A source that dies, falls silent or comes back is told by the feeder's page, as the replication's page reads it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from feeder_helpers import CountingClock, MemoryPumps
from support.mariadb import MariaDb, execute
from support.sourcelog import SERVER_ID, end_of, source_of
from support.tcplink import TcpLink

from binlake.cluster.source.hearing import Hearing, listen
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.service import STATUS_PATH, _describe_worker
from binlake.pump_service.feeder.status import JournalHistory, JournalTransactions, find_unread_sources
from binlake.pump_service.feeder.worker import Parts, Worker
from binlake.pump_service.monitoring import Probes, find_no_reason
from binlake.pump_service.statusport import StatusServer

pytestmark = pytest.mark.mariadb


@dataclass
class Hear:
    """What the page of a feeder says, and its probe."""

    url: str

    def __call__(self) -> Hearing:
        return listen([self.url], 5.0)

    def probe(self) -> tuple[int, str]:
        answer = httpx.get(f"{self.url}/readyz", trust_env=False)
        return answer.status_code, answer.text


class NoTables:
    """A catalog that follows nothing."""

    lock = threading.RLock()
    version = 1

    def find_definition(self, *_: object) -> None: ...

    def follow_all(self, *_: object) -> list[Any]:
        return []


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest) -> MariaDb:
    made: MariaDb = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def link(server: MariaDb) -> Iterator[TcpLink]:
    with TcpLink(server.host, server.port) as made:
        yield made


@pytest.fixture
def hear(server: MariaDb, link: TcpLink, tmp_path: Path) -> Iterator[Hear]:
    """What the page of a feeder says that reads `server` through `link`."""
    source = source_of(server, host=link.host, port=link.port, heartbeat=0.1, read_timeout=0.8)
    journal, stopped = FeederJournal(tmp_path), threading.Event()
    publisher = SourcePublisher(journal, MemoryPumps(), CountingClock(), stopped)
    start = end_of(server)
    worker = Worker(
        source, Parts(journal, publisher, NoTables(), stopped, 1), lambda: open_log(source, SERVER_ID, start),
        lambda _: None,
    )  # fmt: skip
    pages = {STATUS_PATH: lambda: (json.dumps({"sources": [_describe_worker(worker)]}), "application/json")}
    transactions = JournalTransactions(journal, frozenset())
    probed = Probes(find_no_reason, lambda: find_unread_sources([worker]))
    with StatusServer(
        {"version": "x"}, JournalHistory(journal), transactions, lambda: 1, pages=pages, probed=probed
    ) as status:
        worker.start()
        yield Hear(status.url)
        stopped.set()
        worker.wake()
        worker.join()
    journal.close()


def wait_until(hear: Hear, heard: bool) -> Hearing:
    while (now := hear()).is_heard is not heard:
        threading.Event().wait(0.02)
    return now


def test_dead_source_is_not_heard_and_its_lag_is_unknown(server: MariaDb, link: TcpLink, hear: Hear) -> None:
    alive = wait_until(hear, True)
    assert (alive.lag_s, alive.sources[0].trouble) == (0.0, "")
    assert hear.probe() == (200, "ok\n")
    link.cut()
    [dead] = wait_until(hear, False).sources
    assert (dead.state, dead.lag_s, dead.trouble != "") == ("reading", None, True)
    assert hear.probe() == (503, f"source {dead.name}: {hear().sources[0].trouble}\n")
    execute(server, "CREATE DATABASE heard", "DROP DATABASE heard")
    assert hear().measure_lag_s(0, 0) is None
    link.mend()
    assert wait_until(hear, True).sources[0].trouble == ""
    assert hear.probe() == (200, "ok\n")


def test_silent_source_is_not_heard_although_it_is_connected(link: TcpLink, hear: Hear) -> None:
    wait_until(hear, True)
    link.freeze()
    [silent] = wait_until(hear, False).sources
    assert silent.heard_s is not None
    assert silent.heard_s >= 0.5
    status, text = hear.probe()
    assert (status, silent.name in text) == (503, True)
    link.cut()
    link.mend()
    wait_until(hear, True)


def test_log_that_ends_without_an_error_is_not_heard(hear: Hear, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reader takes for `nothing yet`: only bytes from the server count."""
    from binlake.pump_service.feeder.dump import Dump

    wait_until(hear, True)
    monkeypatch.setattr(Dump, "receive_events", lambda _self, wait_s: threading.Event().wait(wait_s) or [])
    [silent] = wait_until(hear, False).sources
    assert (silent.trouble, silent.lag_s) == ("", None)
