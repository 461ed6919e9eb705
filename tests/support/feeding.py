"""A feeder between real servers for tests: the embedded placement driver, real pumps, and the feeder in a thread."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
from pymysql.connections import Connection
from support.mariadb import MariaDb, execute, rows
from support.promptpumps import PromptPump, settle, start_pump

from binlake.cluster.placement import EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import PumpReader
from binlake.common.tomlfile import to_toml_sections
from binlake.config.model import Replication
from binlake.mysqlbinlog.events.gtid import MySqlGtidSet
from binlake.pump_service.feeder.publisher import read_key
from binlake.pump_service.feeder.service import STATUS_PATH, Feeder
from binlake.pump_service.feeder.settings import FeederFile
from binlake.pump_service.pd import PlacementDriver
from binlake.wire import binlog_pb2 as pb
from deploy.local.ports import free_port

WAIT_S = 120.0


def build_three_tables(server: MariaDb, target: MariaDb, *, rows: int) -> None:
    """Create fed.t and fed.other with a key, and fed.log without one and with equal rows; none at `target`."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {rows - 1}) SELECT"
    execute(target, "DROP DATABASE IF EXISTS fed")
    execute(
        server,
        "DROP DATABASE IF EXISTS fed",
        "CREATE DATABASE fed CHARACTER SET utf8mb4",
        "CREATE TABLE fed.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE)",
        "CREATE TABLE fed.log (n INT, what VARCHAR(30))",
        "CREATE TABLE fed.other (id INT PRIMARY KEY, v INT)",
        "SET SESSION max_recursive_iterations = 20000",
        f"INSERT INTO fed.t {numbers} i, CONCAT('u', i), i / 7 FROM n",
        f"INSERT INTO fed.other {numbers} i, i FROM n",
        f"INSERT INTO fed.log {numbers} i % 5, IF(i % 9, 'base', NULL) FROM n",
    )


class FedCluster:
    """A placement driver and pumps in `folder`, for a feeder of `sources` (sections of feeder.toml, as dicts).

    `pump_settings`: in addition to the tests' usual ones.
    """

    def __init__(
        self,
        folder: Path,
        tracker: MariaDb,
        sources: Sequence[dict[str, Any]],
        pumps: int = 2,
        **pump_settings: Any,
    ) -> None:
        self.folder = folder
        self.status_addr = f"127.0.0.1:{free_port()}"
        self._tracker = tracker
        self.sources = sources
        self._pump_settings = pump_settings
        self._stack = ExitStack()
        # One client for all requests, because each new one costs 2 ms of CPU. Connections are closed so that no answer
        # comes from a stopped feeder.
        client = httpx.Client(trust_env=False, verify=False, headers={"Connection": "close"})
        self._client = self._stack.enter_context(client)
        self._pd_port = free_port()
        self.driver = PlacementDriver(folder / "pd", port=self._pd_port).start()
        self._stack.callback(lambda: self.driver.stop())
        self.pd = self._stack.enter_context(closing(PdClient([self.driver.url])))
        self.registry = NodeRegistry(self._stack.enter_context(closing(EtcdClient([self.driver.url]))))
        self.pumps: dict[str, PromptPump] = {}
        for number in range(1, pumps + 1):
            self.start_pump(f"pump{number}")
        self._feeder: Feeder | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> FedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_feeder()
        for name in list(self.pumps):
            self.stop_pump(name)
        self._stack.close()

    def restart_driver(self) -> None:
        """Stop the placement driver, and start it again with the same directory and port."""
        self.driver.stop()
        self.driver = PlacementDriver(self.folder / "pd", port=self._pd_port).start()

    def start_pump(self, name: str) -> None:
        """Start (or restart) the pump `name` on its directory."""
        status = {"status_urls": (f"http://{self.status_addr}",), "resolve_interval_s": 0.1}
        self.pumps[name] = start_pump(self.driver.url, self.folder / name, name, **status, **self._pump_settings)

    def stop_pump(self, name: str) -> None:
        """Stop the pump and leave it paused in the registry."""
        self.pumps.pop(name).stop("paused")

    @property
    def settings(self) -> dict[str, Any]:
        """The content of feeder.toml."""
        server = {"host": self._tracker.host, "port": self._tracker.port}
        return {
            "pd-urls": [self.driver.url], "data-dir": str(self.folder / "feeder"), "status-addr": self.status_addr,
            "tracker": server, "source": list(self.sources),
        }  # fmt: skip

    def write_settings(self) -> Path:
        """Write feeder.toml, and return its path."""
        path = self.folder / "feeder.toml"
        path.write_text(to_toml_sections(self.settings), encoding="utf-8")
        return path

    def start_feeder(self, reached: Callable[[dict[str, Any]], bool] | None = None) -> None:
        """Start the feeder in a thread, and wait until `reached(status)`; by default until every source is being
        read.
        """
        feeder = self._feeder = Feeder(FeederFile.model_validate(self.settings))

        def run() -> None:
            try:
                feeder.run()
            except BaseException as error:  # noqa: BLE001 - raised by stop_feeder
                self._failure = error

        self._thread = threading.Thread(target=run, name="feeder")
        self._thread.start()
        self.until(reached or _all_are_read)

    def stop_feeder(self) -> None:
        """Stop the feeder; raise the error that ended it, if any."""
        feeder, self._feeder = self._feeder, None
        if feeder is not None and self._thread is not None:
            feeder.stop()
            self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def status(self) -> dict[str, Any]:
        """The page /feeder; {} while the feeder does not answer."""
        try:
            answer = self._client.get(f"http://{self.status_addr}{STATUS_PATH}")
        except httpx.HTTPError:
            return {}
        found: dict[str, Any] = answer.json()
        return found

    def until(self, reached: Any) -> dict[str, Any]:
        """Wait until `reached(status)`, and return that status."""
        deadline = time.monotonic() + WAIT_S
        while True:
            status = self.status()
            if status and reached(status):
                return status
            if self._failure is not None:
                raise self._failure
            assert time.monotonic() < deadline, f"the feeder did not reach the expected status: {status}"
            time.sleep(0.02)

    def follow(self, *servers: MariaDb) -> None:
        """Wait until everything that `servers` (in the order of sources) have committed is published."""
        ends = [_gtids(server) for server in servers]

        def reached(status: dict[str, Any]) -> bool:
            # A feeder that has just started shows no source yet.
            return status["unsent_batches"] == 0 and [one.get("gtids") for one in status["sources"]] == ends

        self.until(reached)

    def settle(self) -> int:
        """Wait until every pump's registered watermark has passed the current TSO; return that ts."""
        return settle(self.pumps.values(), self.registry, self.pd.fetch_ts())

    def published(self) -> list[tuple[int, str, pb.Binlog]]:
        """(commit_ts, source's identity, binlog) of everything that the pumps serve, by commit_ts."""
        until, found = self.settle(), list[tuple[int, str, pb.Binlog]]()
        for pump in self.pumps.values():
            for commit_ts, start_ts, payload in PumpReader(pump.addr, self.driver.cluster_id).pull(0, until):
                if commit_ts != start_ts and commit_ts <= until:
                    binlog = pb.Binlog.FromString(payload)
                    _, tail = read_key(binlog.prewrite_key) or (0, "")
                    found.append((commit_ts, tail, binlog))
        return sorted(found, key=lambda one: one[0])

    def replication(self, **more: Any) -> Replication:
        """A replication of this cluster into a lake in this folder."""
        return Replication.model_validate({
            "name": "fed", "initial-commit-ts": "0",
            "source": {"pd-urls": [self.driver.url], "status-url": f"http://{self.status_addr}", "timeout-s": 5},
            "lake": {"path": str(self.folder / "lake")}, "mirror": {"enabled": False}, **more,
        })  # fmt: skip


def _all_are_read(status: dict[str, Any]) -> bool:
    sources = status["sources"]
    return bool(sources) and all(one["state"] == "reading" for one in sources)


def _gtids(server: MariaDb) -> str:
    """The GTIDs of everything that the server has committed, in the form that the status shows."""
    if server.name == "mariadb":
        return str(rows(server, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0])
    return MySqlGtidSet.parse(str(rows(server, "SELECT @@GLOBAL.gtid_executed")[0][0])).format_text()


def mixed_transactions(connection: Connection[Any], db: str, seed: int, count: int) -> None:
    """Commit `count` transactions with inserts, updates, moved keys, swapped unique values and deletes in DB.t (id, u,
    v) and the keyless DB.log (n, what), which also gets duplicate rows.
    """
    draw = random.Random(seed)
    connection.autocommit(False)
    with connection.cursor() as cursor:
        for number in range(count):
            for _ in range(draw.randint(1, 3)):
                _change(cursor, db, draw, f"{seed}-{number}")
            connection.commit() if draw.random() < 0.9 else connection.rollback()
    connection.autocommit(True)


def _change(cursor: Any, db: str, draw: random.Random, mark: str) -> None:
    key, kind = draw.randrange(400), draw.randrange(6)
    if kind == 0:
        cursor.execute(f"INSERT IGNORE INTO {db}.t (id, u, v) VALUES (%s, %s, %s)", (key, f"u{mark}", draw.random()))
    elif kind == 1:
        cursor.execute(f"UPDATE {db}.t SET v = v + 1 WHERE id BETWEEN %s AND %s", (key, key + 5))
    elif kind == 2:
        cursor.execute(f"UPDATE IGNORE {db}.t SET id = %s WHERE id > %s ORDER BY id LIMIT 1", (key, key))
    elif kind == 3:
        cursor.execute(f"DELETE FROM {db}.t WHERE id = %s", (key,))
    elif kind == 4:
        cursor.executemany(f"INSERT INTO {db}.log VALUES (%s, %s)", [(key % 5, "same")] * 2 + [(key, mark)])
    else:
        cursor.execute(f"DELETE FROM {db}.log WHERE n = %s LIMIT 1", (key % 5,))


def contents(server: MariaDb, db: str) -> dict[str, list[str]]:
    """The rows of every table of `db`, as sorted texts."""
    found = {}
    for (table,) in rows(server, "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (db,)):
        found[table] = sorted(map(repr, rows(server, f"SELECT * FROM `{db}`.`{table}`")))
    return found
