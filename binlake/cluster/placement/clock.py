"""Controls the clock of an embedded PD during a replay (proto/binlake/wire/clock.proto)."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from binlake.cluster.placement.channel import call_error, connect
from binlake.errors import ConfigError
from binlake.wire.clock_pb2 import LeadReq, LeadResp
from binlake.wire.clock_pb2_grpc import ClockStub


class ClockClient:
    """Thread-safe.

    Raises SourceUnavailable; ConfigError for a bound that PD has passed, and for a PD whose clock cannot be led (a real
    one).
    """

    def __init__(self, urls: Sequence[str], timeout_s: float = 10.0) -> None:
        self._urls = list(urls)
        self._timeout_s = timeout_s
        self._channel = connect(urls, timeout_s)
        self._stub = ClockStub(self._channel)

    def lead(self, bound: int) -> int:
        """Keep all timestamps below `bound` from now on; returns the last timestamp given so far."""
        return self._send(LeadReq(ts=bound, hold=True))

    def release(self) -> int:
        """Let the clock continue at real pace; returns the last timestamp given so far."""
        return self._send(LeadReq(hold=False))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _send(self, request: LeadReq) -> int:
        try:
            answer: LeadResp = self._stub.Lead(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise ConfigError(
                    error.details() or "the clock cannot be led", where={"pd-urls": ",".join(self._urls)}
                ) from None
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ConfigError(
                    "the clock of this PD is not led",
                    where={"pd-urls": ",".join(self._urls)},
                    hint="a capture is replayed into a fresh `binlake pd --led --start-ts TS`",
                ) from None
            raise call_error(self._urls, error) from None
        return answer.ts
