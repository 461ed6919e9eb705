"""PumpClient: sends binlogs to pumps as TiDB's pump client does (tidb-binlog 4).

A prewrite goes to a usable pump, chosen by the strategy, and after an error to other pumps. Commits and rollbacks go
only to the pump of their prewrite: no other pump could complete them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from google.protobuf.message import EncodeError

from binlake.cluster.node import NodeStatus
from binlake.cluster.pumpclient.ends import Ends, TransactionEnd
from binlake.cluster.pumpclient.pumps import ONLINE, PumpList, PumpListFollower, Pumps, PumpState, build_strategy
from binlake.cluster.pumpclient.transport import Connect, WriteRefusal, WriteRequest, build_rpc_connect
from binlake.errors import ConfigError, Permanent, SourceUnavailable
from binlake.rpc import Tls
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.build import LargePrewrite, serialize_in_pieces


def send_all(requests: Iterable[tuple[PumpState, WriteRequest]], timeout_s: float) -> list[WriteRefusal | None]:
    """Send each request to its pump; returns the outcomes in order, None = stored."""
    waiting = list(requests)
    answers = _Answers(len(waiting))
    for number, (pump, request) in enumerate(waiting):
        pump.connection.send(request, timeout_s, functools.partial(answers.put, number))
    return answers.wait()


class _Answers:
    def __init__(self, count: int) -> None:
        self._outcomes: list[WriteRefusal | None] = [None] * count
        self._left = count
        self._lock = threading.Lock()
        self._done = threading.Event()
        if not count:
            self._done.set()

    def put(self, number: int, refused: WriteRefusal | None) -> None:
        self._outcomes[number] = refused
        with self._lock:
            self._left -= 1
            left = self._left
        if not left:
            self._done.set()

    def wait(self) -> list[WriteRefusal | None]:
        self._done.wait()
        return self._outcomes


log = structlog.get_logger()

MAX_BYTES = (1 << 31) - (1 << 20)
"""Most bytes of one binlog: protobuf's 2 GiB, minus room for the request around it."""
_SOCKET_NODE = "local unix"


@dataclass(frozen=True)
class WriteTimes:
    """Times in seconds: the original's constants (tidb-binlog 4)."""

    write_timeout: float = 15.0
    commit_timeout: float = 600.0
    retry_prewrite: float = 0.1
    retry_commit: float = 1.0
    probe_interval: float = 30.0


@dataclass(frozen=True)
class ClientOptions:
    """How a client chooses pumps and connects.

    `strategy`: range, hash or score. `label`: only pumps with each of these pairs get prewrites, or others with
    `label_fallback` if none of them is usable. `socket`: the path of one local pump, instead of the registry.
    """

    strategy: str = "range"
    label: Mapping[str, str] = field(default_factory=dict)
    label_fallback: bool = False
    socket: str = ""
    tls: Tls | None = None
    times: WriteTimes = WriteTimes()


@dataclass(frozen=True)
class ClientStats:
    """Counts since the client was created; `commit_retries` and `given_up` count commits and rollbacks."""

    prewrite_retries: int
    commit_retries: int
    given_up: int
    probes: int


class PumpClient:
    """Writes to the pumps of `registry` (None with `socket`); thread-safe; connects at the first call.

    `stored(start_ts)`: called when a pump has stored a commit or rollback that was sent without waiting; must not
    block.
    """

    def __init__(
        self,
        registry: PumpList | None,
        cluster_id: int,
        options: ClientOptions = ClientOptions(),
        *,
        connect: Connect | None = None,
        stored: Callable[[int], None] | None = None,
    ) -> None:
        if (registry is None) != bool(options.socket):
            raise ConfigError("a pump client needs a registry or a socket", where={"socket": options.socket})
        self._cluster_id = cluster_id
        self._options = options
        self._times = options.times
        self._strategy = build_strategy(options.strategy)
        self._pumps = Pumps(connect or build_rpc_connect(options.tls), options.label, options.label_fallback)
        self._follower = None if registry is None else PumpListFollower(registry, self._pumps)
        if options.socket:
            self._pumps.put(_SOCKET_NODE, NodeStatus(_SOCKET_NODE, f"unix:{options.socket}", ONLINE))
        self._lock = threading.Lock()
        self._pump_of: dict[int, str] = {}
        self._ends = Ends(
            self._pumps,
            timeout_s=self._times.write_timeout,
            retry_s=self._times.retry_commit,
            give_up_s=self._times.commit_timeout,
            settled=self._on_settled,
        )
        self._stored = stored
        self._prewrite_retries = 0
        self._probes = 0
        self._stopped = threading.Event()
        self._prober: threading.Thread | None = None

    @property
    def stats(self) -> ClientStats:
        """Counts since the client was created."""
        return ClientStats(self._prewrite_retries, self._ends.retries, self._ends.given_up, self._probes)

    def list_usable_pumps(self) -> list[str]:
        """Node ids of the pumps that currently get prewrites. Raises SourceUnavailable if pumps were never listed."""
        self._start()
        return [pump.node_id for pump in self._pumps.list_usable()]

    def write_prewrite(self, binlog: Binlog | LargePrewrite) -> str:
        """Store a prewrite on one pump; returns the pump's node id, after the fsync.

        Raises SourceUnavailable if no pump confirmed it (one of them may have stored it nevertheless: a timeout proves
        nothing), Permanent for another cluster or a binlog that is too large.
        """
        request = self._build_request(binlog)
        self._start()
        pump = self._write_to_any(request, binlog.start_ts)
        with self._lock:
            self._pump_of[binlog.start_ts] = pump.node_id
        return pump.node_id

    def write_prewrites(self, binlogs: Sequence[Binlog | LargePrewrite]) -> list[str]:
        """Store many prewrites in parallel; returns their node ids. Raises as write_prewrite: some may be stored."""
        requests = [self._build_request(binlog) for binlog in binlogs]
        self._start()
        pumps = self._pumps.list_usable()
        if not pumps:
            return [self.write_prewrite(binlog) for binlog in binlogs]
        chosen = [pumps[self._strategy.pick(pumps, binlog.start_ts, 0, ())] for binlog in binlogs]
        refused = send_all(zip(chosen, requests, strict=True), self._times.write_timeout)
        names = []
        for binlog, request, pump, why in zip(binlogs, requests, chosen, refused, strict=True):
            if self._record_outcome(pump, why) is not None:
                self._prewrite_retries += 1
                pump = self._write_to_any(request, binlog.start_ts)
            names.append(pump.node_id)
        with self._lock:
            self._pump_of.update(zip((binlog.start_ts for binlog in binlogs), names, strict=True))
        return names

    def write_commit(self, binlog: Binlog, node_id: str | None = None) -> str:
        """Store a commit on the pump of its prewrite, or on `node_id` (if it is sent again); returns the node id.

        Retries each second up to the commit timeout, then raises SourceUnavailable (the pump will ask the source);
        Permanent if this client wrote no such prewrite.
        """
        return self._write_end(binlog, node_id)

    def write_rollback(self, binlog: Binlog, node_id: str | None = None) -> str:
        """Store a rollback; like write_commit."""
        return self._write_end(binlog, node_id)

    def send_commit(self, binlog: Binlog, node_id: str | None = None) -> str:
        """Send a commit without waiting, as TiDB does for its applications (MISSION S0-24); returns the node id.

        It goes to the pump of its prewrite, or to `node_id` (if it is sent again). It is retried in the background,
        and given up after the commit timeout (see `stats`). Raises Permanent if this client wrote no such prewrite.
        """
        node_id = node_id or self._find_pump_of(binlog)
        self._start()
        self._ends.put(TransactionEnd(binlog.start_ts, node_id, self._build_request(binlog)))
        return node_id

    def send_rollback(self, binlog: Binlog) -> str:
        """Send a rollback without waiting; like send_commit."""
        return self.send_commit(binlog)

    def forget(self, start_ts: int) -> None:
        """Forget a prewrite for which no commit or rollback will be sent."""
        with self._lock:
            self._pump_of.pop(start_ts, None)

    def _on_settled(self, start_ts: int, accepted: bool) -> None:
        self.forget(start_ts)
        if accepted and self._stored is not None:
            self._stored(start_ts)

    def drain(self, timeout_s: float) -> int:
        """Wait at most `timeout_s` for sent commits and rollbacks; returns how many are still pending."""
        return self._ends.drain(timeout_s)

    def close(self) -> None:
        """Close all connections; the pumps must resolve what is still pending (see `drain`)."""
        self._stopped.set()
        if self._follower is not None:
            self._follower.stop()
        self._ends.stop()
        self._pumps.close()
        if self._prober is not None:
            self._prober.join()

    def __enter__(self) -> PumpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._follower is not None:
            self._follower.start()
        with self._lock:
            if self._prober is None and not self._stopped.is_set():
                self._prober = threading.Thread(target=self._probe, name="pumpclient-probe", daemon=True)
                self._prober.start()

    def _build_request(self, binlog: Binlog | LargePrewrite) -> WriteRequest:
        if isinstance(binlog, LargePrewrite):
            pieces, size = binlog.pieces, sum(map(len, binlog.pieces))
        else:
            try:
                pieces = serialize_in_pieces(binlog)
            except EncodeError:
                pieces = ()
            size = sum(map(len, pieces)) or binlog.ByteSize()
        if size > MAX_BYTES:
            where = {"start_ts": binlog.start_ts, "bytes": size, "limit": MAX_BYTES}
            raise Permanent("the binlog is too large", where=where, hint="split the transaction")
        return WriteRequest(self._cluster_id, pieces)

    def _write_to_any(self, request: WriteRequest, start_ts: int) -> PumpState:
        begun, tries = time.monotonic(), 0
        failed: dict[str, str] = {}
        while True:
            pumps = self._pumps.list_usable()
            if pumps:
                pump = pumps[self._strategy.pick(pumps, start_ts, tries, failed)]
                refused = self._try(pump, request)
                if refused is None:
                    return pump
                failed[pump.node_id] = refused.text
                self._prewrite_retries += 1
            self._check_open(start_ts)
            tries += 1
            if time.monotonic() - begun > self._times.write_timeout and tries > len(pumps):
                return self._try_every_pump(request, start_ts, failed)
            # Pumps that were not tried yet are tried at once (MISSION S0-39), others after a pause.
            if all(pump.node_id in failed for pump in pumps):
                failed = {}
                self._stopped.wait(self._times.retry_prewrite)

    def _try_every_pump(self, request: WriteRequest, start_ts: int, failed: Mapping[str, str]) -> PumpState:
        """Try every online pump, whatever its errors so far; a success makes a pump usable again."""
        reasons = dict(failed)
        for pump in self._pumps.list_online():
            refused = self._try(pump, request)
            if refused is None:
                return pump
            reasons[pump.node_id] = refused.text
        label = " ".join(f"{name}={value}" for name, value in sorted(self._options.label.items()))
        raise SourceUnavailable(
            "no pump accepted the prewrite" if reasons else "no available pump",
            where={"start_ts": start_ts, **reasons, **({"label": label} if label else {})},
            hint="check whether a pump with this label is online" if label else "",
        )

    def _write_end(self, binlog: Binlog, node_id: str | None) -> str:
        node_id = node_id or self._find_pump_of(binlog)
        request, begun, last = self._build_request(binlog), time.monotonic(), ""
        self._start()
        while True:
            pump = self._pumps.find(node_id)
            refused = self._try(pump, request) if pump else WriteRefusal("the pump is not registered")
            if refused is None:
                self.forget(binlog.start_ts)
                return node_id
            last = refused.text
            self._check_open(binlog.start_ts)
            if time.monotonic() - begun > self._times.commit_timeout:
                raise SourceUnavailable(
                    "the pump did not accept the commit or rollback of a transaction",
                    where={"pump": node_id, "start_ts": binlog.start_ts, "last": last},
                )
            self._stopped.wait(self._times.retry_commit)

    def _check_open(self, start_ts: int) -> None:
        if self._stopped.is_set():
            raise SourceUnavailable("the client was closed", where={"start_ts": start_ts})

    def _find_pump_of(self, binlog: Binlog) -> str:
        with self._lock:
            node_id = self._pump_of.get(binlog.start_ts)
        if node_id is None:
            raise Permanent("this client wrote no prewrite for it", where={"start_ts": binlog.start_ts})
        return node_id

    def _try(self, pump: PumpState, request: WriteRequest) -> WriteRefusal | None:
        """None if it is stored, else the reason why not. Raises errors that a retry cannot fix."""
        return self._record_outcome(pump, pump.connection.write(request, self._times.write_timeout))

    def _record_outcome(self, pump: PumpState, refused: WriteRefusal | None) -> WriteRefusal | None:
        """Record `refused` for its pump, and return it. Raises errors that a retry cannot fix."""
        if refused is None:
            self._pumps.record_success(pump)
            return None
        where = {"pump": pump.node_id, "addr": pump.host}
        if "cluster id" in refused.text.lower():
            hint = "client and pump follow different PDs"
            raise ConfigError(f"the pump refused: {refused.text}", where=where, hint=hint)
        if refused.too_large:
            raise Permanent(f"the binlog is too large: {refused.text}", where=where)
        if self._pumps.record_failure(pump):
            log.warning("pump_avoided", pump=pump.node_id, error=refused.text)
        return refused

    def _probe(self) -> None:
        """Send an empty write to each avoided online pump (MISSION S0-40)."""
        request = WriteRequest(self._cluster_id)
        while not self._stopped.wait(self._times.probe_interval):
            for pump in self._pumps.list_avoided():
                self._probes += 1
                refused = pump.connection.write(request, self._times.write_timeout)
                if refused is None:
                    self._pumps.record_success(pump)
                    log.info("pump_used_again", pump=pump.node_id)
