"""PumpClient: hands binlogs to pumps as TiDB's pump client does (tidb-binlog 4).

P goes round robin with an offset that continues and tries the next pump after an error. C and R go to the pump that
took their P and nowhere else: any other pump could not complete them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import structlog

from binlake.errors import BinlakeError, ConfigError, Permanent, SourceUnavailable
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.pump_pb2 import WriteBinlogReq, WriteBinlogResp

log = structlog.get_logger()

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_MAX_ERRORS = 10  # in a row: then a pump is left alone for _PROBE_S
_PROBE_S = 30.0
_REFRESH_S = 5.0  # how old the list of pumps may be


class PumpStatus(Protocol):
    """What the client needs of a registry entry."""

    @property
    def node_id(self) -> str:
        """Name of the pump."""

    @property
    def host(self) -> str:
        """HOST:PORT of the pump."""

    @property
    def state(self) -> str:
        """State in the registry; only `online` takes P."""


class PumpList(Protocol):
    """Who lists the pumps: the registry."""

    def pumps(self) -> Sequence[PumpStatus]:
        """Every registered pump. Raises BinlakeError."""


@dataclass(frozen=True)
class WriteTimes:
    """Seconds: the original's constants (tidb-binlog 4)."""

    write_timeout: float = 15.0
    commit_timeout: float = 600.0
    retry_prewrite: float = 0.1
    retry_commit: float = 1.0


@dataclass
class _Pump:
    node_id: str
    host: str
    write: grpc.UnaryUnaryMultiCallable[WriteBinlogReq, WriteBinlogResp]
    channel: grpc.Channel
    errors: int = 0
    last_error_at: float = 0.0

    def usable(self, now: float) -> bool:
        return self.errors <= _MAX_ERRORS or now - self.last_error_at > _PROBE_S


@dataclass
class _View:
    """The pumps as last listed."""

    online: list[_Pump] = field(default_factory=list)
    known: dict[str, _Pump] = field(default_factory=dict)
    listed_at: float = float("-inf")


class PumpClient:
    """Writes to the online pumps of `registry`; thread-safe. `strategy`: only `range` (round robin) so far.

    Raises ConfigError for an unknown strategy.
    """

    def __init__(
        self, registry: PumpList, cluster_id: int, strategy: str = "range", *, times: WriteTimes = WriteTimes()
    ) -> None:
        if strategy != "range":
            raise ConfigError("unknown pump strategy", where={"strategy": strategy}, hint="use range")
        self._registry = registry
        self._cluster_id = cluster_id
        self._times = times
        self._view = _View()
        self._stale: list[_Pump] = []
        self._lock = threading.Lock()
        self._offset = 0
        self._placed: dict[int, str] = {}

    def write_prewrite(self, binlog: Binlog) -> str:
        """Store a P on one pump; its node id, after the fsync.

        Raises SourceUnavailable when no pump took it within the write timeout, Permanent for another cluster or a
        binlog that is too large.
        """
        payload, begun, tries = binlog.SerializeToString(), time.monotonic(), 0
        last: BinlakeError | None = None
        while True:
            pumps = self._candidates()
            pump = self._next_of(pumps) if pumps else None
            if pump is not None:
                last = self._try(pump, payload, self._times.write_timeout)
                if last is None:
                    self._placed[binlog.start_ts] = pump.node_id
                    return pump.node_id
            tries += 1
            if time.monotonic() - begun > self._times.write_timeout and tries > len(pumps):
                raise SourceUnavailable(
                    "no pump took the prewrite",
                    where={
                        "start_ts": binlog.start_ts,
                        "pumps": len(pumps),
                        "tries": tries,
                        "last": last or "none online",
                    },
                )
            time.sleep(self._times.retry_prewrite)

    def write_commit(self, binlog: Binlog, node_id: str | None = None) -> str:
        """Store a C on the pump that took its P, or on `node_id` (a C that is sent again); its node id.

        Tries again each second up to the commit timeout, then raises SourceUnavailable (the pump will ask the source
        itself); Permanent when this client wrote no such P.
        """
        return self._write_end(binlog, node_id)

    def write_rollback(self, binlog: Binlog, node_id: str | None = None) -> str:
        """Store an R; as write_commit."""
        return self._write_end(binlog, node_id)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            for pump in [*self._view.known.values(), *self._stale]:
                pump.channel.close()
            self._view, self._stale = _View(), []

    def __enter__(self) -> PumpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_end(self, binlog: Binlog, node_id: str | None) -> str:
        node_id = node_id or self._placed.get(binlog.start_ts)
        if node_id is None:
            raise Permanent("this client wrote no prewrite for it", where={"start_ts": binlog.start_ts})
        payload, begun = binlog.SerializeToString(), time.monotonic()
        while True:
            pump = self._listed().known.get(node_id)
            last = self._try(pump, payload, self._times.write_timeout) if pump else None
            if pump and last is None:
                self._placed.pop(binlog.start_ts, None)
                return node_id
            if time.monotonic() - begun > self._times.commit_timeout:
                raise SourceUnavailable(
                    "the pump did not take the end of a transaction",
                    where={"pump": node_id, "start_ts": binlog.start_ts, "last": last or "not registered"},
                )
            time.sleep(self._times.retry_commit)

    def _candidates(self) -> list[_Pump]:
        online, now = self._listed().online, time.monotonic()
        return [pump for pump in online if pump.usable(now)] or online

    def _next_of(self, pumps: list[_Pump]) -> _Pump:
        with self._lock:
            self._offset += 1
            return pumps[(self._offset - 1) % len(pumps)]

    def _try(self, pump: _Pump, payload: bytes, timeout_s: float) -> BinlakeError | None:
        """None when it is stored, else why not; raises what no other try can change."""
        try:
            answer = pump.write(WriteBinlogReq(clusterID=self._cluster_id, payload=payload), timeout=timeout_s)
            text, code = answer.errmsg, None
        except grpc.RpcError as error:
            text, code = error.details() or "", error.code()
        if not text and code is None:
            pump.errors = 0
            return None
        pump.errors += 1
        pump.last_error_at = time.monotonic()
        self._view.listed_at = float("-inf")
        return _refusal(pump, text, code)

    def _listed(self) -> _View:
        with self._lock:
            if time.monotonic() - self._view.listed_at > _REFRESH_S:
                self._refresh()
            return self._view

    def _refresh(self) -> None:
        try:
            listed = sorted(self._registry.pumps(), key=lambda status: status.node_id)
        except SourceUnavailable as error:
            # The pumps known so far still work without PD; without any, there is nobody to write to.
            if not self._view.known:
                raise
            log.warning("pumps_not_listed", error=str(error))
            return
        known = {status.node_id: self._pump(status) for status in listed}
        online = [known[status.node_id] for status in listed if status.state == "online"]
        # Not closed here: another thread may be in the middle of a call.
        self._stale += [pump for node_id, pump in self._view.known.items() if known.get(node_id) is not pump]
        self._view = _View(online, known, time.monotonic())

    def _pump(self, status: PumpStatus) -> _Pump:
        old = self._view.known.get(status.node_id)
        if old is not None and old.host == status.host:
            return old
        channel = grpc.insecure_channel(status.host, options=_OPTIONS)
        write: grpc.UnaryUnaryMultiCallable[WriteBinlogReq, WriteBinlogResp] = channel.unary_unary(
            "/binlog.Pump/WriteBinlog", WriteBinlogReq.SerializeToString, WriteBinlogResp.FromString
        )
        return _Pump(status.node_id, status.host, write, channel)


def _refusal(pump: _Pump, text: str, code: grpc.StatusCode | None) -> BinlakeError:
    where = {"pump": pump.node_id, "addr": pump.host}
    if "cluster id" in text.lower():
        raise ConfigError(f"the pump refused: {text}", where=where, hint="client and pump follow different PDs")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise Permanent(f"the binlog is too large: {text}", where=where)
    return SourceUnavailable(f"the pump refused: {text}", where=where)
