"""A pump from start to end: checks whose data it holds, listens, registers, serves, leaves (tidb-binlog 2.11, 3.2).

It leaves as `paused` (pause, SIGTERM: its data is still needed) or, once every consumer has read everything, as
`offline`.

Before it accepts a P: the cluster is the remembered one, PD's clock is not behind the data (hazards R-09), the
registration is confirmed, a fake gives it a watermark (hazards R-49), and online consumers have answered (S0-57).
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import plyvel
import structlog

from binlake.cluster.pumpclient import PumpReader
from binlake.errors import BinlakeError, ConfigError, Fenced, Permanent, SourceUnavailable, WireError
from binlake.pump_service.pump.clients import Clients, NoStatusSource, StatusQueries, StatusSource
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.directory import TimedFiles
from binlake.pump_service.pump.future_timestamps import Ceiling
from binlake.pump_service.pump.lean_server import LeanServer
from binlake.pump_service.pump.membership import ClusterClock, Members, Membership, Ticker, compute_score, measure_usage
from binlake.pump_service.pump.metrics import PumpMetrics
from binlake.pump_service.pump.outcomes import PrewriteVerdict, Resolver
from binlake.pump_service.pump.pages import Gate, Pages
from binlake.pump_service.pump.recovery import StartStopped
from binlake.pump_service.pump.retention import Collector, Departure, GcRule
from binlake.pump_service.pump.service import FakeWriter, PumpService, State
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.pump_service.waits import wait_for_item

log = structlog.get_logger()

_GRACE_S = 10.0
_LOOK_S = 1.0  # how often a closing pump checks whether it may leave
_PROBE_S = 2.0
_VERIFY_S = 0.1  # between two checks of the R that need a proof


class PumpServer:
    """One pump. `oracle`, `members` and `source` replace the clients that the config describes. If `oracle` is given,
    the pump does not look for TiKV."""

    def __init__(
        self,
        config: PumpConfig,
        *,
        oracle: ClusterClock | None = None,
        members: Members | None = None,
        source: StatusSource | None = None,
    ) -> None:
        self._config = config
        self._clients = Clients(config, oracle=oracle, members=members, source=source)
        self._oracle, self._members = self._clients.oracle, self._clients.members
        self._source = self._clients.source
        self._tickers: list[Ticker] = []
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asked_early = threading.Event()
        self._score = 0
        self._left = self._registered = False
        self._leaving = threading.Lock()

    @property
    def addr(self) -> str:
        """HOST:PORT at which it listens; known after `start`."""
        return self._rpc.address

    @property
    def node_id(self) -> str:
        """The node id in the registry; known after `start`."""
        return self.service.node_id

    def start(self) -> bool:
        """Serve; P are accepted once it has returned True. False: the pump was asked to leave before, and nothing is
        running.

        Raises Permanent (data directory or port taken, PD's clock behind), ConfigError (another cluster),
        SourceUnavailable (PD, registry or a consumer does not answer); then nothing is left running.
        """
        try:
            self._start()
        except StartStopped:
            log.info("pump_start_stopped", data_dir=str(self._config.data_dir))
            return False
        log.info("pump_online", pump=self.node_id, addr=self.addr, watermark=self._storage.watermark)
        return True

    def _start(self) -> None:
        metrics = PumpMetrics()
        self._ceiling = Ceiling(self._oracle.fetch_ts, self._config.future_slack_s)
        with contextlib.ExitStack() as undo:
            undo.callback(self._clients.close)
            regions = self._clients.find_regions()
            options = StorageOptions(
                segment_bytes=self._config.segment_bytes,
                sync_log=self._config.sync_log,
                trust_rollbacks=isinstance(self._source, NoStatusSource) and regions is None,
                accepted_damage=self._config.accepted_damage,
            )
            self._storage = PumpStorage(
                self._config.data_dir,
                options,
                files=TimedFiles(metrics.count_sync),
                ceiling=self._ceiling,
                recover=False,
                stop=self._asked_early.is_set,
            )
            undo.callback(self._storage.close)
            if regions is not None:
                self._clients.ask_tikv(regions, self._storage.directory.store_uuid)
            self._check_source()
            self._listen(metrics)
            undo.callback(self._end_calls)
            self._storage.recover()  # the port is open: /status and Info show the progress
            self._join()
            undo.pop_all()

    def request_leave(self, action: str) -> None:
        """Ask `serve` to leave: "pause", "close", or "lost" (without a change of the registry).

        Safe from a signal handler and from any thread. A `start` that is reading the log back ends early.
        """
        self._asked_early.set()
        self._asked.put(action)

    def serve(self) -> State:
        """Serve until asked to leave, then leave; return the state that the registry then shows.

        Raises Fenced when another pump took this node id (this pump then stops writing to the registry). Raises
        SourceUnavailable when it went offline but could not update the registry: windows would wait for it forever, so
        it must be started again.
        """
        action = wait_for_item(self._asked)
        if action == "close":
            action = self._close()
        if action == "lost":
            self._leave(None)
            raise Fenced("another pump took over this node id", where={"pump": self.node_id})
        if action == "pause":
            self.stop()
        if self.service.state is State.OFFLINE and not self._registered:
            raise SourceUnavailable(
                "the pump has left, but the registry was not updated",
                where={"pump": self.node_id},
                hint="start it again, and close it once PD answers",
            )
        return self.service.state

    def stop(self, state: Literal["paused", "offline"] = "paused") -> None:
        """Accept no more P, finish what is in flight, register `state` (`offline`: everything was read); idempotent."""
        if self._left:
            return
        self.service.state = State.PAUSING
        self._publish()
        self._leave(lambda: State(state))

    def _close(self) -> str:
        """Wait until its data is no longer needed; empty when the pump has left, otherwise a new request."""
        self.service.state = State.CLOSING
        for ticker in self._moving:
            ticker.stop()
        departure = Departure(self._storage, self._members, self._fakes, self.node_id)
        while True:
            why = departure.find_reason_to_wait()
            self.service.problems.set("closing", why)
            if self._publish() == State.OFFLINE:
                log.error("offline_by_command", pump=self.node_id, not_taken=why or "nothing")
                self._leave(lambda: State.OFFLINE)
                return ""
            if not why:
                self._leave(self._build_state_chooser(departure.compared_watermark))
                return ""
            action = self._wait_for_request(min(_LOOK_S, self._config.heartbeat_interval_s))
            if action not in ("", "close"):  # a repeated close changes nothing
                return action

    def _wait_for_request(self, timeout_s: float) -> str:
        try:
            return self._asked.get(timeout=timeout_s)
        except queue.Empty:
            return ""

    def _build_state_chooser(self, taken: int) -> Callable[[], State]:
        def choose_state() -> State:
            # A write that was in flight when closing began may have been stored since; then the pump is still needed.
            # The log is checked, too: after an index failure the watermark does not cover everything.
            done = not self._storage.count_unmatched()[0] and self._storage.max_ts <= taken
            return State.OFFLINE if done else State.PAUSED

        return choose_state

    def _leave(self, state: Callable[[], State] | None) -> None:
        with self._leaving:
            if self._left:
                return
            self._left = True
        self.resolver.stop()
        for ticker in self._tickers:
            ticker.stop()
        self.resolver.close()
        try:
            self._end_calls()
            self._storage.close()
        finally:  # even if this fails, the registry must not say that the pump still serves
            if state is not None:
                self.service.state = state()
                self._registered = self._publish() == self.service.state
            self._membership.leave()
            self._clients.close()
        log.info("pump_stopped", pump=self.node_id, state=self.service.state, watermark=self._storage.watermark)

    def _check_source(self) -> None:
        directory, cluster = self._storage.directory, self._oracle.fetch_cluster_id()
        known = directory.remember("cluster", str(cluster))
        if known != str(cluster):
            raise ConfigError(
                "PD belongs to another cluster than the data",
                where={"data": known, "pd": cluster, "data_dir": directory.path},
            )
        now = self._ceiling.fetch_ts()
        if now < self._storage.max_ts:
            where = {"pd_ts": now, "max_ts": self._storage.max_ts, "data_dir": directory.path}
            log.error("binlogs_from_the_future", **where)
            raise Permanent(
                "PD's clock is behind the binlogs stored here: new binlogs would be lost below the watermark",
                where=where,
                hint="`binlake pump set-aside` lists binlogs from the future and moves them out; if the cluster was "
                "rebuilt or PD lost its state: start with an empty data directory",
            )

    def _listen(self, metrics: PumpMetrics) -> None:
        config = self._config
        self.service = PumpService(
            self._storage,
            self._oracle.fetch_cluster_id(),
            free_bytes_needed=config.stop_write_at_available_space,
            slow_write_s=config.slow_write_threshold_s,
            metrics=metrics,
        )
        rule = GcRule(config.gc_s, config.gc_force_after_s)
        self.collector = Collector(self._storage, self._members, self._oracle, rule)
        self.pages = Pages(
            self.service,
            self._storage,
            self._members,
            self._oracle,
            ask=self.request_leave,
            verdict=PrewriteVerdict(self._storage, self._build_status_queries(), self.service.metrics),
            waiting=lambda: self.resolver.describe(),
            collect=self._collect,
            score=lambda: self._score,
            gate=Gate(config.token_file, strict=config.protect_state),
        )
        self._rpc = self._build_transport()
        host = config.advertise_addr or self._rpc.address
        directory = self._storage.directory
        self.service.node_id = directory.recall("node") or config.node_id or directory.remember("node", host)
        self._host = host
        self._rpc.start()

    def _build_status_queries(self) -> StatusQueries:
        config = self._config
        return StatusQueries(
            self._source, self._clients.tikv, clock=self._oracle.fetch_ts, timeout_s=config.txn_timeout_s
        )

    def _build_transport(self) -> LeanServer:
        config = self._config
        socket = Path(config.socket) if config.socket else None
        return LeanServer(self.service, config.addr, http=self.pages, tls=config.tls.to_tls(), socket=socket)

    def _join(self) -> None:
        self._membership = Membership(
            self._members,
            self.node_id,
            self._host,
            self._ceiling.estimate_now,
            label=self._config.label,
            score=self._renew_score,
            claim=self._clients.claim(self.node_id, self._storage.directory.store_uuid, self._host),
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self._membership.leave)
            previous = self._membership.claim(self._find_node_at)
            self._membership.publish(State.ONLINE, self._storage.watermark)
            self._fakes = FakeWriter(self._storage, self._ceiling.fetch_ts, self.service)
            self._fakes.write()
            if previous == State.OFFLINE:
                self._announce()
            undo.pop_all()
        self.service.state = State.ONLINE
        self._start_tickers()

    def _announce(self) -> None:
        try:
            self._membership.notify_consumers(self._config.tls.to_tls())
        except BinlakeError:
            self.service.state = State.OFFLINE
            self._publish()
            raise

    def _start_tickers(self) -> None:
        config = self._config
        resolver = Resolver(
            self._storage, self._source, config.txn_timeout_s, clock=self._oracle.fetch_ts, tikv=self._clients.tikv
        )
        self.resolver = resolver
        self.service.status_queries = lambda: resolver.queries

        def resolve() -> None:
            resolver.resolve_waiting()
            self.service.problems.set("blocked", resolver.blocked)

        # A closing pump does both itself when it needs to.
        self._moving = [
            Ticker("pump-fake", config.gen_binlog_interval_s, self._fakes.tick),
            Ticker("pump-heartbeat", config.heartbeat_interval_s, self._publish),
        ]
        self._tickers = [
            *self._moving,
            Ticker("pump-resolver", config.resolve_interval_s, resolve),
            Ticker("pump-rollbacks", min(_VERIFY_S, config.resolve_interval_s), resolver.verify_rollbacks),
            Ticker("pump-gc", config.gc_interval_s, self._collect),
        ]
        for ticker in self._tickers:
            ticker.start()

    def _publish(self) -> str:
        """Write the present state; return the state that the registry then has, empty when it could not be written."""
        state, problem = self.service.state, ""
        self.service.problems.set("future", self._check_ahead_of_pd())
        try:
            return self._membership.publish(state, self._storage.watermark)
        except Fenced as error:
            problem = str(error)
            self.service.state = State.PAUSING
            self.request_leave("lost")
        except BinlakeError as error:
            problem = str(error)
        finally:
            self.service.problems.set("registry", problem)
        log.warning("registry_not_updated", pump=self.node_id, state=state, error=problem)
        return ""

    def _check_ahead_of_pd(self) -> str:
        """Why the watermark cannot be trusted; empty = nothing stored is above PD's clock."""
        max_ts, line = self._storage.max_ts, self._ceiling.compute_highest_allowed()
        if max_ts <= line:
            return ""
        return f"{max_ts} is stored, above PD's clock ({line}): stop this pump, then `binlake pump set-aside`"

    def _renew_score(self) -> int:
        try:
            self._score = compute_score(measure_usage(self._config.data_dir), self._config.score_weights)
        except OSError as error:
            # A value-log file may be collected after the listing and before its stat.
            log.warning("score_not_renewed", error=str(error))
        return self._score

    def _find_node_at(self, host: str) -> str:
        try:
            return (
                PumpReader(host, self._oracle.fetch_cluster_id(), timeout_s=_PROBE_S, tls=self._config.tls.to_tls())
                .read_info()
                .node_id
            )
        except WireError:
            return ""  # an original pump: it answers, but does not report its name

    def _collect(self) -> str:
        """Collect now; return which consumer holds it back or loses data, or why it failed. Empty = no problem."""
        try:
            problem = self.collector.run().problem
        except (BinlakeError, OSError, plyvel.Error) as error:
            problem = f"failed: {error}"
            log.warning("not_collected", pump=self.node_id, error=str(error))
        self.service.problems.set("gc", problem)
        return problem

    def _end_calls(self) -> None:
        self.service.end_pulls()
        self._rpc.stop(_GRACE_S)
