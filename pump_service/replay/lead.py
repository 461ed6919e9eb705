"""Leads the clock of the embedded placement driver over its Clock service; a real PD has none and cannot be led."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from binlake.errors import BinlakeError, ConfigError, SourceUnavailable
from binlake.wire.clock_pb2 import LeadReq, LeadResp


class PdLead:
    """`urls`: addresses of PD; the first one is led. `last`: the last timestamp PD had given when it answered."""

    def __init__(self, urls: Sequence[str], timeout_s: float = 10.0) -> None:
        self._url = urls[0]
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(self._url.partition("://")[2] or self._url)
        self._call = self._channel.unary_unary(
            "/binlake.wire.Clock/Lead", LeadReq.SerializeToString, LeadResp.FromString
        )
        self._bound = 0

    def lead(self, bound: int) -> None:
        """Every timestamp from now on is below `bound`. Raises ConfigError when PD has gone past it already."""
        self._bound = bound
        answer = self._lead(LeadReq(ts=bound, hold=True))
        if answer.ts >= bound:
            raise ConfigError(
                f"PD has given the timestamp {answer.ts}, the replay needs it below {bound}",
                where={"pd": self._url},
                hint="this capture was replayed into this cluster already, or PD followed the wall clock: start a new "
                "`binlake pd` with its clock held, and pumps with fresh data directories",
            )

    def release(self) -> None:
        """The clock runs on at real pace."""
        self._lead(LeadReq(ts=self._bound, hold=False))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _lead(self, request: LeadReq) -> LeadResp:
        try:
            answer: LeadResp = self._call(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._error(error) from error
        return answer

    def _error(self, error: grpc.RpcError) -> BinlakeError:
        where = {"pd": self._url}
        text = f"{error.details()} ({error.code().name})"
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ConfigError(
                "PD's clock cannot be led", where=where, hint="a capture is replayed into `binlake pd`, not a real PD"
            )
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return SourceUnavailable(f"PD cannot be reached: {text}", where=where, hint="start `binlake pd`")
        return ConfigError(f"PD does not take the bound: {text}", where=where)
