"""A full load whose source fails over in the middle: each row is loaded once, as the source has it, whichever server
answers.

Random: changes of the source while chunks are read, when the primary becomes unreachable and reachable again, when its
replica is behind, and when the feeder is killed.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, DyingPumps, Loaded, committed, filled, rows_of
from randomload_helpers import Writer, check_published
from support.mariadb import MariaDb, execute, rows
from support.tcplink import TcpLink
from support.topology import Topology, start_replica

from binlake.errors import SourceUnavailable
from binlake.pump_service.feeder.dump import SERVER_FACT
from binlake.pump_service.feeder.server import Address, Link, connect
from binlake.pump_service.feeder.settings import ServerSection
from binlake.pump_service.feeder.snapshot.catchup import CatchUp
from binlake.pump_service.feeder.snapshot.loading import SnapshotLoader

pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module", params=["mariadb", pytest.param("mysql", marks=pytest.mark.soak)])
def servers(request: pytest.FixtureRequest) -> Iterator[Topology]:
    primary: MariaDb = request.getfixturevalue("mysql" if request.param == "mysql" else "mariadb_source")
    with start_replica(primary) as topology:
        yield topology


@pytest.fixture
def topology(servers: Topology, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topology]:
    """Both have a database without tables, and the replica follows."""
    monkeypatch.setattr("binlake.pump_service.feeder.snapshot.chunkwriter._PREWRITE_BYTES", 100)
    monkeypatch.setattr("binlake.pump_service.feeder.snapshot.loading._RETRY_S", 0)
    servers.replicate()
    execute(servers.primary, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}")
    yield servers
    servers.replicate()
    execute(servers.primary, f"DROP DATABASE {DB}")


def source_settings(topology: Topology, link: TcpLink) -> dict[str, Any]:
    """Settings of the source: its primary through `link`, or, if that fails, its replica."""
    replica = topology.replica
    return {"host": link.host, "port": link.port, "addresses": [f"{replica.host}:{replica.port}"]}


class Outages:
    """Injects faults at the calls of the pumps, and after the last chunk."""

    def __init__(self, topology: Topology, writer: Writer, link: TcpLink, draw: random.Random) -> None:
        self.topology, self.writer, self.link, self.draw = topology, writer, link, draw
        self.left, self.next = 4, draw.randint(2, 10)

    def __call__(self, call: int) -> None:
        self.writer.change(self.draw.randint(0, 2))
        if call >= self.next and self.left:
            self.left -= 1
            self.next = call + self.draw.randint(2, 14)
            self.fail()

    def fail(self) -> None:
        if self.draw.random() < 0.5:
            self.topology.stop_replicating()
        self.writer.change(self.draw.randint(0, 20))
        what = self.draw.choice([self.link.cut, self.link.cut, self.link.mend, None])
        if what is None:
            raise KeyboardInterrupt
        what()
        if self.draw.random() < 0.5:
            self.topology.replicate()

    def fail_before_catching_up(self) -> None:
        """The last chunk is read; the server that answers next continues."""
        if self.left:
            self.left -= 1
            self.fail()
        self.topology.replicate()


def run_random_load(topology: Topology, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, primary = random.Random(seed), topology.primary
    writer, pumps, clock = Writer(primary, draw), DyingPumps(), CountingClock()
    writer.create()
    with TcpLink(primary.host, primary.port) as link:
        outages = Outages(topology, writer, link, draw)
        pumps.before = outages
        read = CatchUp.read

        def catch_up(self: CatchUp) -> Iterator[Any]:
            outages.fail_before_catching_up()
            yield from read(self)

        monkeypatch.setattr(CatchUp, "read", catch_up)
        source, small = source_settings(topology, link), {"chunk-rows": 7, "threads": 2}
        while True:
            with closing(Loaded(primary, folder, pumps, clock, source, **small)) as loaded:
                try:
                    loaded.load()
                except (KeyboardInterrupt, SourceUnavailable) as error:
                    if "lacks" in str(error):
                        topology.replicate()
                        topology.wait_for_replica()
                else:
                    break
            writer.change(draw.randint(0, 10))
        pumps.before = lambda _: None
        link.mend()
        writer.change(20)
        with closing(Loaded(primary, folder, pumps, clock, source)) as loaded:
            check_published(primary, loaded, pumps)


@pytest.mark.parametrize("seed", range(2))
def test_each_row_is_loaded_once_whichever_server_answers(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # S4-02, S4-24, R-34
    run_random_load(topology, tmp_path, seed, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_outages(topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    run_random_load(topology, tmp_path, seed, monkeypatch)


def test_all_sessions_of_a_load_use_one_server(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that accepts only some connections, and another one that is behind."""
    primary, calls = filled(topology.primary), 0
    topology.wait_for_replica()
    topology.stop_replicating()
    execute(primary, f"INSERT INTO {DB}.t SELECT id + 100, v FROM {DB}.t")

    def refuse_once(server: ServerSection, address: Address | None = None, **arguments: Any) -> Link:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise SourceUnavailable("the server cannot be reached: Too many connections")
        return connect(server, address, **arguments)

    monkeypatch.setattr("binlake.pump_service.feeder.snapshot.opening.connect", refuse_once)
    pumps, replica = DyingPumps(), f"{topology.replica.host}:{topology.replica.port}"
    with closing(Loaded(primary, tmp_path, pumps, CountingClock(), {"addresses": [replica]}, threads=3)) as loaded:
        with suppress(SourceUnavailable):
            loaded.load()
        loaded.load()
        assert rows_of(committed(pumps)) == 200
        assert loaded.journal.read_fact(SERVER_FACT + "s1") == rows(primary, _IDENTITY[primary.name])[0][0]


_IDENTITY = {"mariadb": "SELECT CAST(@@server_id AS CHAR)", "mysql": "SELECT @@server_uuid"}


def test_no_snapshot_is_taken_of_two_servers_at_one_address(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that sometimes leads to the replica."""
    primary, replica, calls = filled(topology.primary), topology.replica, 0

    def connect_by_proxy(server: ServerSection, _address: Address | None = None, **arguments: Any) -> Link:
        nonlocal calls
        calls += 1
        return connect(server, (replica.host, replica.port) if calls == 3 else None, **arguments)

    monkeypatch.setattr("binlake.pump_service.feeder.snapshot.opening.connect", connect_by_proxy)
    with closing(Loaded(primary, tmp_path, DyingPumps(), CountingClock(), threads=3)) as loaded:
        with pytest.raises(SourceUnavailable, match="two servers answer at one address"):
            loaded.load()
        loaded.load()


def test_a_load_with_all_rows_read_continues_at_a_server_that_is_behind(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two snapshots of the primary, killed before the last step; then a replica at the first one's position."""
    primary, pumps, clock = filled(topology.primary), DyingPumps(), CountingClock()
    with TcpLink(primary.host, primary.port) as link:
        source, small = source_settings(topology, link), {"chunk-rows": 10, "threads": 1}
        pumps.dies_at = 6
        with closing(Loaded(primary, tmp_path, pumps, clock, source, **small)) as loaded, suppress(KeyboardInterrupt):
            loaded.load()
        topology.wait_for_replica()
        topology.stop_replicating()
        execute(primary, f"UPDATE {DB}.t SET v = -v WHERE id IN (1, 99)", f"DELETE FROM {DB}.t WHERE id = 2")
        with monkeypatch.context() as patch:
            patch.setattr(SnapshotLoader, "_commit", _kill)
            loaded = Loaded(primary, tmp_path, pumps, clock, source, **small)
            with closing(loaded), pytest.raises(KeyboardInterrupt):
                loaded.load()
        link.cut()
        with closing(Loaded(primary, tmp_path, pumps, clock, source, **small)) as loaded:
            loaded.load()
            topology.replicate()
            link.mend()
            check_published(primary, loaded, pumps, ["t"])


def _kill(*_: object) -> Generator[None]:
    raise KeyboardInterrupt
