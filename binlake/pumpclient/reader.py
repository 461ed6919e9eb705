"""PumpReader: pulls from one pump, in strictly increasing commit_ts, what lies after a ts (tidb-binlog 2.9).

A channel lives as long as one pull: nothing is open before it or after it, so a reader may be made before a fork and
used in a Spark Python worker.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import grpc

from binlake.errors import BinlakeError, ConfigError, LostRange, SourceUnavailable, WireError
from binlake.wire.admin_pb2 import InfoReq, InfoResp
from binlake.wire.pump_pb2 import Pos, PullBinlogReq, PullBinlogResp

Pulled = tuple[int, int, bytes]
"""(commit_ts, start_ts, payload: the serialised complete C); commit_ts == start_ts marks a fake."""

_FOREVER = float("inf")
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class PumpInfo:
    """What a Binlake pump tells of itself (PumpAdmin/Info). ts are TSO; 0 = none."""

    cluster_id: int
    node_id: str
    store_uuid: str
    state: str
    max_commit_ts: int
    gc_ts: int
    unmatched_prewrites: int
    oldest_unmatched_start_ts: int
    last_error: str
    late_commits: int
    early_commits: int
    status_queries: int


class PumpReader:
    """Reads the pump at `addr` (HOST:PORT).

    `timeout_s`: for connecting and for Info. `idle_timeout_s`: how long a pull may wait for the next entity (a healthy
    pump sends a fake every few seconds).
    """

    def __init__(self, addr: str, cluster_id: int, *, timeout_s: float = 10.0, idle_timeout_s: float = 30.0) -> None:
        self.addr = addr
        self.cluster_id = cluster_id
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s

    def pull(self, after_ts: int, until_ts: int | None = None) -> Iterator[Pulled]:
        """Entities with commit_ts > `after_ts`, fakes among them, for ever.

        With `until_ts` through the first one at or above it: it proves that the pump is complete up to there (hazards
        R-48).

        Raises SourceUnavailable (not reachable, broke, or silent for too long), LostRange (the pump collected the
        range), ConfigError (another cluster), WireError (damage in the pump); each names pump and ts.
        """
        with self._channel() as channel:
            call = self._open(channel, after_ts)
            with contextlib.closing(_IdleGuard(call, self._idle_timeout_s)) as guard:
                yield from self._receive(call, guard, after_ts, until_ts)

    def info(self) -> PumpInfo:
        """Ask PumpAdmin/Info. Raises SourceUnavailable; WireError when the pump has no such service (an original)."""
        with self._channel() as channel:
            ask = channel.unary_unary("/binlake.wire.PumpAdmin/Info", InfoReq.SerializeToString, InfoResp.FromString)
            try:
                found: InfoResp = ask(InfoReq(), timeout=self._timeout_s)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise WireError("the pump has no Info service", where={"pump": self.addr}) from None
                raise self._error(error, 0) from None
        return PumpInfo(**{field.name: getattr(found, field.name) for field in found.DESCRIPTOR.fields})

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.addr, options=_OPTIONS)

    def _open(self, channel: grpc.Channel, after_ts: int) -> _PullCall:
        try:
            grpc.channel_ready_future(channel).result(self._timeout_s)
        except grpc.FutureTimeoutError:
            raise SourceUnavailable(
                f"the pump cannot be reached within {self._timeout_s:g} s", where=self._where(after_ts)
            ) from None
        stream = channel.unary_stream(
            "/binlog.Pump/PullBinlogs", PullBinlogReq.SerializeToString, PullBinlogResp.FromString
        )
        return stream(PullBinlogReq(clusterID=self.cluster_id, startFrom=Pos(offset=after_ts)))

    def _receive(self, call: _PullCall, guard: _IdleGuard, after_ts: int, until_ts: int | None) -> Iterator[Pulled]:
        last = after_ts
        try:
            for response in call:
                guard.since = _FOREVER
                entity = response.entity
                meta = entity.meta
                last = meta.commitTs
                yield last, meta.startTs, entity.payload
                if until_ts is not None and last >= until_ts:
                    return
                guard.since = time.monotonic()
        except grpc.RpcError as error:
            if guard.fired:
                raise self._silent(last) from None
            raise self._error(error, last) from None
        finally:
            call.cancel()
        raise SourceUnavailable("the pump ended the stream", where=self._where(last))

    def _silent(self, last: int) -> SourceUnavailable:
        return SourceUnavailable(
            f"the pump sent nothing for {self._idle_timeout_s:g} s: its watermark stands still",
            where=self._where(last),
            hint="its Info tells why: a prewrite without its commit, or no timestamps from PD",
        )

    def _error(self, error: grpc.RpcError, last: int) -> BinlakeError:
        kinds: dict[grpc.StatusCode, type[BinlakeError]] = {
            grpc.StatusCode.OUT_OF_RANGE: LostRange,
            grpc.StatusCode.DATA_LOSS: WireError,
            grpc.StatusCode.FAILED_PRECONDITION: ConfigError,
        }
        kind = kinds.get(error.code(), SourceUnavailable)
        return kind(f"pull failed: {error.details()} ({error.code().name})", where=self._where(last))

    def _where(self, after_ts: int) -> dict[str, object]:
        return {"pump": self.addr, "after_ts": after_ts}


class _PullCall(Protocol):
    """The running call: an iterator of responses that can be cancelled."""

    def __iter__(self) -> Iterator[PullBinlogResp]: ...

    def cancel(self) -> object: ...


class _IdleGuard:
    """Cancels a call whose reader has waited too long; the time the reader itself takes does not count.

    `since`: when the reader began to wait (monotonic seconds); infinity while it does not.
    """

    def __init__(self, call: _PullCall, limit_s: float) -> None:
        self.since = time.monotonic()
        self.fired = False
        self._call = call
        self._limit_s = limit_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pump-idle-guard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._limit_s / 4)):
            if time.monotonic() - self.since > self._limit_s:
                self.fired = True
                self._call.cancel()
                return
