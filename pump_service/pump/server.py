"""The life of a pump: checks whose data it holds, listens, registers, serves, leaves as `paused` (tidb-binlog 2.11).

Before the first P: the cluster is the one remembered, PD's clock is not behind the data (hazards R-09), the
registration is confirmed, a fake gives it a watermark (hazards R-49), and online consumers have answered (S0-57).
"""

from __future__ import annotations

from typing import Literal

import plyvel
import structlog

from binlake.errors import BinlakeError, ConfigError, Permanent
from binlake.placement import EtcdClient, PdClient, Registry
from binlake.source import TidbSource
from binlake.wire.build import fake
from pump_service.pump.config import PumpConfig
from pump_service.pump.gc import Collector, GcRule
from pump_service.pump.grpc_server import GrpcServer
from pump_service.pump.membership import Members, Membership, Oracle, Ticker
from pump_service.pump.resolver import NoStatusSource, Resolver, StatusSource
from pump_service.pump.service import PumpService, State
from pump_service.pump.storage import Storage, StorageOptions

log = structlog.get_logger()

_GRACE_S = 10.0
_VERIFY_S = 0.1  # between two looks at the R that want a proof


class FakeWriter:
    """Writes a fake binlog when the watermark did not move, but by fakes, since the last look (hazards R-50)."""

    def __init__(self, storage: Storage, oracle: Oracle, service: PumpService) -> None:
        self._storage = storage
        self._oracle = oracle
        self._service = service
        self._seen = 0

    def tick(self) -> None:
        """Look, and write when it is time; a failure is shown by Info, not raised."""
        watermark = self._storage.watermark
        if watermark > self._seen:
            self._seen = watermark
            return
        try:
            self.write()
        except BinlakeError as error:
            self._service.problems.set("fake", str(error))
            log.warning("fake_not_written", error=str(error))
        else:
            self._service.problems.set("fake", "")

    def write(self) -> None:
        """Store one fake at a fresh timestamp. Raises BinlakeError."""
        ts = self._oracle.tso()
        self._storage.append(fake(ts).SerializeToString()).result()
        self._seen = max(self._seen, ts)


class PumpServer:
    """One pump. `oracle`, `members` and `source` replace the clients that the config describes."""

    def __init__(
        self,
        config: PumpConfig,
        *,
        oracle: Oracle | None = None,
        members: Members | None = None,
        source: StatusSource | None = None,
    ) -> None:
        self._config = config
        self._oracle: Oracle = oracle or PdClient(config.pd_urls)
        self._etcd = EtcdClient(config.pd_urls)
        self._members: Members = members or Registry(self._etcd)
        urls = config.status_urls
        self._source = source or (TidbSource(self._oracle, urls) if urls else NoStatusSource())
        self._tickers: list[Ticker] = []

    @property
    def addr(self) -> str:
        """HOST:PORT it listens at; known after `start`."""
        return self._grpc.address

    @property
    def node_id(self) -> str:
        """Its name in the registry; known after `start`."""
        return self.service.node_id

    def start(self) -> None:
        """Serve; P are accepted when it returns.

        Raises Permanent (data directory or port taken, PD's clock behind), ConfigError (another cluster),
        SourceUnavailable (PD, registry or a consumer does not answer); then nothing is left running.
        """
        options = StorageOptions(
            segment_bytes=self._config.segment_bytes,
            sync_log=self._config.sync_log,
            trust_rollbacks=isinstance(self._source, NoStatusSource),
        )
        self._storage = Storage(self._config.data_dir, options)
        try:
            started_ts = self._check_source()
            self._listen()
        except BaseException:
            self._storage.close()
            self._disconnect()
            raise
        try:
            self._join(started_ts)
        except BaseException:
            self._end_serving()
            self._disconnect()
            raise
        log.info("pump_online", pump=self.node_id, addr=self.addr, watermark=self._storage.watermark)

    def stop(self, state: Literal["paused", "offline"] = "paused") -> None:
        """Take no more P, finish what is in flight, register `state` (`offline`: all is consumed); idempotent."""
        if self.service.state is State(state):
            return
        self.service.state = State.PAUSING
        self._publish(State.PAUSING)
        for ticker in self._tickers:
            ticker.stop()
        self.resolver.close()
        self._end_serving()
        self.service.state = State(state)
        self._publish(State(state))
        self._disconnect()
        log.info("pump_stopped", pump=self.node_id, state=state, watermark=self._storage.watermark)

    def _check_source(self) -> int:
        directory, cluster = self._storage.directory, self._oracle.cluster_id()
        known = directory.remember("cluster", str(cluster))
        if known != str(cluster):
            raise ConfigError(
                "PD belongs to another cluster than the data",
                where={"data": known, "pd": cluster, "data_dir": directory.path},
            )
        now = self._oracle.tso()
        if now < self._storage.max_ts:
            raise Permanent(
                "PD's clock is behind the binlogs stored here: new ones would be lost below the watermark",
                where={"pd_ts": now, "max_ts": self._storage.max_ts},
                hint="the cluster was rebuilt or PD lost its state: start with an empty data directory",
            )
        return now

    def _listen(self) -> None:
        config = self._config
        self.service = PumpService(
            self._storage, self._oracle.cluster_id(), free_bytes_needed=config.stop_write_at_available_space
        )
        self._grpc = GrpcServer(self.service, config.addr)
        host = config.advertise_addr or self._grpc.address
        directory = self._storage.directory
        self.service.node_id = directory.recall("node") or config.node_id or directory.remember("node", host)
        self._host = host
        self._grpc.start()

    def _join(self, started_ts: int) -> None:
        self._membership = Membership(self._members, self.node_id, self._host, started_ts)
        previous = self._membership.previous_state()
        self._membership.publish(State.ONLINE, self._storage.watermark)
        fakes = FakeWriter(self._storage, self._oracle, self.service)
        fakes.write()
        if previous == State.OFFLINE:
            self._announce()
        self.service.state = State.ONLINE
        self._start_tickers(fakes)

    def _announce(self) -> None:
        try:
            self._membership.notify_consumers()
        except BinlakeError:
            self._publish(State.OFFLINE)
            raise

    def _start_tickers(self, fakes: FakeWriter) -> None:
        config, resolver = self._config, Resolver(self._storage, self._source, self._config.txn_timeout_s)
        self.resolver = resolver
        self.service.status_queries = lambda: resolver.queries
        rule = GcRule(config.gc_s, config.gc_force_after_s)
        self.collector = Collector(self._storage, self._members, self._oracle, rule)

        def resolve() -> None:
            resolver.round()
            self.service.problems.set("blocked", resolver.blocked)

        def collect() -> None:
            problem = ""
            try:
                problem = self.collector.run().problem
            except (BinlakeError, OSError, plyvel.Error) as error:
                problem = str(error)
                log.warning("not_collected", pump=self.node_id, error=problem)
            self.service.problems.set("gc", problem)

        self._tickers = [
            Ticker("pump-fake", config.gen_binlog_interval_s, fakes.tick),
            Ticker("pump-heartbeat", config.heartbeat_interval_s, lambda: self._publish(State.ONLINE)),
            Ticker("pump-resolver", config.resolve_interval_s, resolve),
            Ticker("pump-rollbacks", min(_VERIFY_S, config.resolve_interval_s), resolver.verify),
            Ticker("pump-gc", config.gc_interval_s, collect),
        ]
        for ticker in self._tickers:
            ticker.start()

    def _publish(self, state: State) -> None:
        try:
            self._membership.publish(state, self._storage.watermark)
        except BinlakeError as error:
            self.service.problems.set("registry", str(error))
            log.warning("registry_not_updated", pump=self.node_id, state=state, error=str(error))
        else:
            self.service.problems.set("registry", "")

    def _disconnect(self) -> None:
        self._oracle.close()
        self._etcd.close()

    def _end_serving(self) -> None:
        self.service.end_pulls()
        self._grpc.stop(_GRACE_S)
        self._storage.close()
