"""A MariaDB server, the feeder, pumps, windows, and another MariaDB server that is equal in the end."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.feeder_killer import STEPS
from support.feeding import FedCluster, contents, mixed_transactions
from support.feedload import TABLES, Load, purge, run_windows, wait_for_transactions
from support.killer import Killer
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from binlake.cli import run
from binlake.lake.paths import LakePaths
from binlake.mysqlbinlog.charsets import REPLACED
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.publisher import Stopped
from binlake.pump_service.feeder.snapshot.chunkwriter import ChunkWriter
from binlake.pump_service.feeder.snapshot.loadstate import read_load_record
from binlake.spark_jobs.commands.bootstrap import Bootstrap, follow_bootstrap

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    """A separate source, because its logs are purged."""
    with mariadb_in_memory(MariaDb.list_source_options()) as made:
        yield made


def test_source_and_target_are_equal(server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path) -> None:
    # S4-01 S4-50
    execute(server, "CREATE DATABASE fed CHARACTER SET utf8mb4")
    source = {"name": "shard-1", "host": server.host, "port": server.port, "start": {"mode": "now"}}
    with FedCluster(tmp_path, server, [source]) as cluster, server.connect() as link:
        cluster.start_feeder()
        execute(mariadb, "CREATE DATABASE fed CHARACTER SET utf8mb4")
        execute(
            server,
            "CREATE TABLE fed.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE, at TIMESTAMP(3) DEFAULT NOW(3),"
            " note TEXT CHARACTER SET latin1, bits BIT(5), kind ENUM('a', 'é') DEFAULT 'é') CHARACTER SET utf8mb4",
            "CREATE TABLE fed.log (n INT, what VARCHAR(30))",
        )
        mixed_transactions(link, "fed", 1, 150)
        cluster.follow(server)
        run_windows(cluster, target)
        assert contents(mariadb, "fed") == contents(server, "fed")
        execute(
            server,
            "ALTER TABLE fed.t ADD COLUMN more DECIMAL(20, 4) NOT NULL DEFAULT 1.5, DROP COLUMN bits",
            "UPDATE fed.t SET note = 'große Straße', kind = 'a' WHERE id < 100",
            "RENAME TABLE fed.log TO fed.log2",
            "CREATE TABLE fed.log LIKE fed.log2",
        )
        mixed_transactions(link, "fed", 2, 150)
        execute(server, "TRUNCATE TABLE fed.log2", "INSERT INTO fed.log2 VALUES (1, NULL)")
        cluster.follow(server)
        # Published data does not need the source's log any more: the pumps serve as its relay log.
        cluster.stop_feeder()
        purge(server)
        cluster.start_feeder()
        mixed_transactions(link, "fed", 3, 20)
        cluster.follow(server)
        run_windows(cluster, target)
        assert len(contents(server, "fed")) == 3
        assert contents(mariadb, "fed") == contents(server, "fed")


@pytest.mark.parametrize("form", [pytest.param("rows", marks=pytest.mark.soak), "columns"])
def test_full_load_under_writes_and_following_windows_are_equal(
    server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path, form: str
) -> None:
    # S4-02 U-19 R-34
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999) SELECT"
    execute(
        server,
        "DROP DATABASE IF EXISTS fed",
        "CREATE DATABASE fed CHARACTER SET utf8mb4",
        "CREATE TABLE fed.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE, at TIMESTAMP(3) DEFAULT NOW(3),"
        " note TEXT CHARACTER SET latin1, bits BIT(5), kind ENUM('a', 'é') DEFAULT 'é') CHARACTER SET utf8mb4",
        "CREATE TABLE fed.log (n INT, what VARCHAR(30))",
        "SET SESSION max_recursive_iterations = 20000",
        f"INSERT INTO fed.t (id, u, v, note, bits) {numbers} i, CONCAT('u', i), i / 7, 'ä€', i % 32 FROM n",
        f"INSERT INTO fed.log {numbers} i % 5, 'base' FROM n",
    )
    source = {
        "name": "shard-1",
        "host": server.host,
        "port": server.port,
        "snapshot": {"chunk-rows": 150, "form": form},
    }
    stop = threading.Event()

    def write() -> None:
        with server.connect() as link:
            for seed in itertools.count(100):
                if stop.wait(0.02):
                    return
                mixed_transactions(link, "fed", seed, 5)

    writer = threading.Thread(target=write)
    with FedCluster(tmp_path, server, [source]) as cluster:
        writer.start()
        try:
            cluster.start_feeder()
            load = cluster.status()["sources"][0]["load"]
            for _ in range(2):
                run_windows(cluster, target)
        finally:
            stop.set()
            writer.join()
        assert (load["state"], load["tables_done"]) == ("done", 2)
        assert load["by_table"]["fed.t"]["chunks"] > 10
        cluster.follow(server)
        run_windows(cluster, target)
        assert len(contents(server, "fed")["t"]) > 2_000
        assert contents(mariadb, "fed") == contents(server, "fed")
        shown: list[Bootstrap] = []
        done = follow_bootstrap(cluster.replication(target=target), "applied", shown.append)
        assert shown == [done]
        assert (done.loads[0].rows, done.loads[0].tables) == (load["rows"], 2)


@pytest.mark.parametrize("form", [pytest.param("rows", marks=pytest.mark.soak), "columns"])
def test_full_load_killed_repeatedly_resumes(
    server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path, form: str
) -> None:
    # S4-02 S4-24 R-34: chunks are kept, changes between the snapshots come once; target and mirror are equal
    _build_base(server, mariadb)
    snapshot = {"chunk-rows": 50, "form": form}
    source = {"name": "shard-1", "host": server.host, "port": server.port, "snapshot": snapshot}
    with FedCluster(tmp_path, server, [source]) as cluster, server.connect() as link:
        kept = [0]
        with Killer("feeder_killer", cluster.write_settings()) as killer:
            for number, step in enumerate(LOAD_STEPS):
                killer.kill_at(*step)
                mixed_transactions(link, "fed", 200 + number, 30)
                with closing(FeederJournal(tmp_path / "feeder")) as journal:
                    kept.append(read_load_record(journal, "shard-1")["rows"])
        assert kept[1:5] == sorted(kept[1:5])
        assert kept[1] > 0
        cluster.start_feeder()
        cluster.follow(server)
        load = cluster.status()["sources"][0]["load"]
        assert load["state"] == "done"
        for _ in range(2):
            run_windows(cluster, target, mirror={"enabled": True})
        times = Counter(tail for _, tail, _ in cluster.published())
        assert {tail for tail, count in times.items() if count > 1} == set()
        assert contents(mariadb, "fed") == contents(server, "fed")
        mirror = DeltaTable(LakePaths.of(cluster.replication()).locate_mirror("fed", "t")).to_pyarrow_table(
            columns=["id", "u", "v"]
        )
        found = sorted(tuple(row.values()) for row in mirror.to_pylist())
        assert found == sorted(rows(server, "SELECT id, u, v FROM fed.t"))


def _act_after_second_chunks(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` after chunks of a full load have been recorded for the second time."""
    record, calls = ChunkWriter.record, itertools.count(1)

    def record_and_act(self: ChunkWriter, *chunks: Any, is_visible: bool) -> None:
        record(self, *chunks, is_visible=is_visible)
        if next(calls) == 2:
            act()

    monkeypatch.setattr(ChunkWriter, "record", record_and_act)
    monkeypatch.setattr("binlake.pump_service.feeder.snapshot.chunkwriter._PREWRITE_BYTES", 20_000)


def test_source_that_dies_in_its_full_load_is_awaited(
    server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S4-24
    _build_base(server, mariadb)
    _act_after_second_chunks(monkeypatch, server.kill9)
    source = {"name": "shard-1", "host": server.host, "port": server.port, "snapshot": {"chunk-rows": 50}}
    with FedCluster(tmp_path, server, [source]) as cluster, ThreadPoolExecutor(1) as pool:
        started = pool.submit(cluster.start_feeder)
        status = cluster.until(lambda status: status["sources"] and status["sources"][0]["trouble"])["sources"][0]
        assert (status["state"], status["load"]["state"]) == ("loading", "reading")
        server.start()
        started.result()
        cluster.until(lambda status: not status["sources"][0]["trouble"])
        run_windows(cluster, target)
        assert contents(mariadb, "fed") == contents(server, "fed")


def test_source_removed_in_its_full_load_does_not_block_the_others(
    server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S4-24 R-34: the other source's windows continue, and the removed source is loaded completely when it comes back
    def end_load() -> None:
        raise Stopped

    _build_base(server, mariadb)
    _act_after_second_chunks(monkeypatch, end_load)
    monkeypatch.setattr(
        "binlake.pump_service.pump.outcomes._VERSIONS_LIVE_S", 0.0
    )  # a missing record at the feeder proves nothing
    at = {"host": server.host, "port": server.port, "rename-schema": "{source}_{schema}"}
    read = {"name": "read", "start": {"mode": "now"}, **at}
    loaded = {"name": "loaded", "snapshot": {"chunk-rows": 50, "form": "columns"}, **at}
    with FedCluster(tmp_path, server, [read, loaded]) as cluster:
        cluster.start_feeder(lambda status: [one["state"] for one in status["sources"]] == ["reading", "stopped"])
        cluster.stop_feeder()
        execute(server, "CREATE TABLE fed.more (id INT PRIMARY KEY)", "INSERT INTO fed.more VALUES (1), (2)")
        cluster.sources = [read]
        cluster.start_feeder()
        execute(mariadb, "CREATE DATABASE read_fed")
        cluster.follow(server)
        run_windows(cluster, target, mirror={"enabled": True})
        assert contents(mariadb, "read_fed") == {"more": ["(1,)", "(2,)"]}
        # What was committed stays; its tables are created again below.
        shown = contents(mariadb, "loaded_fed")
        assert 0 < sum(map(len, shown.values())) < sum(map(len, contents(server, "fed").values()))
        (removed,) = cluster.status()["removed"]
        assert (removed["source"], removed["load"]["state"]) == ("loaded", "rolled back")
        assert removed["load"]["rows"] > 0
        cluster.stop_feeder()
        cluster.sources = [read, loaded]
        cluster.start_feeder()
        assert cluster.status()["removed"] == []
        run_windows(cluster, target, mirror={"enabled": True})
        assert contents(mariadb, "loaded_fed") == contents(server, "fed")
        mirror = DeltaTable(LakePaths.of(cluster.replication()).locate_mirror("loaded_fed", "t")).to_pyarrow_table()
        found = sorted(tuple(row.values()) for row in mirror.select(["id", "u", "v"]).to_pylist())
        assert found == sorted(rows(server, "SELECT id, u, v FROM fed.t"))


def _build_base(server: MariaDb, target: MariaDb) -> None:
    """Create 3,000 rows in fed.t and fed.log of `server`, and none at `target`."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999) SELECT"
    execute(target, "DROP DATABASE IF EXISTS fed")
    execute(
        server,
        "DROP DATABASE IF EXISTS fed",
        "CREATE DATABASE fed CHARACTER SET utf8mb4",
        "CREATE TABLE fed.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE)",
        "CREATE TABLE fed.log (n INT, what VARCHAR(30))",
        "SET SESSION max_recursive_iterations = 20000",
        f"INSERT INTO fed.t (id, u, v) {numbers} i, CONCAT('u', i), i / 7 FROM n",
        f"INSERT INTO fed.log {numbers} i % 5, 'base' FROM n",
    )


LOAD_STEPS = [
    ("after chunks", 1),
    ("before chunks", 2),
    ("after prewrites", 3),
    ("before outcome", 2),
    ("after outcome", 2),
]
"""The definitions are the first outcome, the changes of rows that were read in an earlier attempt the second one."""


@pytest.mark.parametrize("kills", [len(STEPS), pytest.param(50, marks=pytest.mark.soak)])
def test_feeder_killed_repeatedly_under_load_publishes_every_transaction_once(
    kills: int,
    server: MariaDb,
    target: dict[str, Any],
    mariadb: MariaDb,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # S4-49 R-10
    for one in (server, mariadb):
        execute(one, "DROP DATABASE IF EXISTS fed", "CREATE DATABASE fed", *TABLES)
    source = {"name": "shard-1", "host": server.host, "port": server.port, "start": {"mode": "now"}}
    with FedCluster(tmp_path, server, [source]) as cluster:
        cluster.start_feeder()
        cluster.stop_feeder()
        draw = random.Random(49)
        with Killer("feeder_killer", cluster.write_settings()) as killer, Load(server):
            for step in (STEPS * kills)[:kills]:
                killer.kill_at(step, 1 if step.split()[1] in ("resend", "register") else draw.randint(1, 4))
        cluster.start_feeder()
        cluster.follow(server)
        times = Counter(tail for _, tail, _ in cluster.published())
        assert len(times) > kills
        assert {tail for tail, count in times.items() if count > 1} == set()
        run_windows(cluster, target)
        assert contents(mariadb, "fed") == contents(server, "fed")
        status = "feeder", "status", "--config", str(cluster.write_settings())
        REPLACED.add("shop.of_this_test", "v")
        assert cluster.status()["replaced_texts"]["shop.of_this_test"] == 1
        assert run(status) == 0
        running = capsys.readouterr().out
        assert "replaced texts of shop.of_this_test (invalid-text) since the start: 1\n" in running
        cluster.stop_feeder()
        assert run(status) == 1
        stopped = capsys.readouterr().out
    end = rows(server, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0]
    file, offset = rows(server, "SHOW MASTER STATUS")[0][:2]
    for shown in (running, stopped):
        assert f"\n  file: {file}\n  offset: {offset}\n  gtids: {end}\n" in shown


def test_restarts_of_placement_driver_pump_and_source_are_survived(
    server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    # S0-11 R-10
    for one in (server, mariadb):
        execute(one, "DROP DATABASE IF EXISTS fed", "CREATE DATABASE fed", *TABLES)
    source = {"name": "shard-1", "host": server.host, "port": server.port, "start": {"mode": "now"}}
    with FedCluster(tmp_path, server, [source]) as cluster:
        cluster.start_feeder()
        with Load(server):
            wait_for_transactions(cluster)
            cluster.restart_driver()
            wait_for_transactions(cluster)
            cluster.stop_pump("pump1")
            wait_for_transactions(cluster)
            cluster.start_pump("pump1")
            wait_for_transactions(cluster)
        server.kill9()
        cluster.until(lambda status: status["sources"][0]["trouble"])
        server.start()
        with Load(server, 1_000_000):
            wait_for_transactions(cluster)
        cluster.follow(server)
        times = Counter(tail for _, tail, _ in cluster.published())
        assert {tail for tail, count in times.items() if count > 1} == set()
        run_windows(cluster, target)
        assert contents(mariadb, "fed") == contents(server, "fed")
