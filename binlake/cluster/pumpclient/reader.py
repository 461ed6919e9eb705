"""PumpReader: pulls all binlogs after a ts from one pump, in strictly increasing commit_ts (tidb-binlog 2.9).

A channel exists only during a pull, so a reader may be created before a fork and used in a Spark Python worker. It uses
binlake.rpc, since grpcio receives at a tenth of a pump's speed.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from binlake.errors import BinlakeError, ConfigError, LostRange, SourceUnavailable, WireError
from binlake.rpc import Channel, MessageStream, RpcError, Status, Tls
from binlake.wire import blocks
from binlake.wire.admin_pb2 import InfoReq, InfoResp, MeasureRangeReq, MeasureRangeResp
from binlake.wire.blocks import BinlogBlock, BinlogPart
from binlake.wire.pump_pb2 import Pos, PullBinlogReq, PullBinlogResp

Pulled = tuple[int, int, bytes]
"""(commit_ts, start_ts, payload: the serialised complete C); commit_ts == start_ts marks a fake binlog."""

_RETRY_S = 0.1
_KINDS: dict[Status, type[BinlakeError]] = {
    Status.OUT_OF_RANGE: LostRange,
    Status.DATA_LOSS: WireError,
    Status.FAILED_PRECONDITION: ConfigError,
}


@dataclass(frozen=True)
class PumpInfo:
    """A Binlake pump's report about itself (PumpAdmin/Info). Timestamps are TSO, disks bytes; 0: none, or not known."""

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
    lost_commit_ts: tuple[int, ...]
    disk_stored: int
    disk_free: int
    disk_size: int


@dataclass(frozen=True)
class RangeSize:
    """About how many bytes of binlogs a range of a pump has; its parts of similar size end at `cuts` (commit_ts)."""

    bytes: int
    cuts: tuple[int, ...]


class PumpReader:
    """Reads the pump at `addr` (HOST:PORT), by TLS if `tls` is given.

    `timeout_s`: for connecting and for Info. `idle_timeout_s`: the longest time without bytes during a pull (a healthy
    pump sends a fake binlog every few seconds); a large entity may take longer as long as bytes arrive.
    """

    def __init__(
        self,
        addr: str,
        cluster_id: int,
        *,
        timeout_s: float = 10.0,
        idle_timeout_s: float = 30.0,
        tls: Tls | None = None,
    ) -> None:
        self.addr = addr
        self.cluster_id = cluster_id
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._tls = tls

    def pull(self, after_ts: int, until_ts: int | None = None) -> Iterator[Pulled]:
        """Entities with commit_ts > `after_ts`, including fake binlogs, for ever.

        With `until_ts`, up to and including the first entity at or above it, which proves that the pump has sent
        everything up to `until_ts` (hazards R-48).

        Raises SourceUnavailable (not reachable, connection lost, or silent for too long), LostRange (the pump's GC has
        removed the range), ConfigError (another cluster), WireError (damage in the pump); each names pump and ts.
        """
        with self._open_channel() as channel, self._open(channel, after_ts) as stream:
            yield from self._receive(stream, after_ts, until_ts)

    def pull_blocks(self, after_ts: int, until_ts: int) -> Generator[BinlogBlock, None, None]:
        """Like `pull` with `until_ts`, many at once: a Binlake pump sends blocks; messages of others are grouped."""
        for one in self._pull_many(after_ts, until_ts, [blocks.ASKED]):
            assert isinstance(one, BinlogBlock)
            yield one

    def pull_parts(self, after_ts: int, until_ts: int) -> Generator[BinlogBlock | BinlogPart, None, None]:
        """As `pull_blocks`; a Binlake pump sends a large binlog in parts, which follow each other from offset 0 on."""
        yield from self._pull_many(after_ts, until_ts, [blocks.ASKED, blocks.PARTS_ASKED])

    def _pull_many(
        self, after_ts: int, until_ts: int, metadata: Sequence[tuple[str, str]]
    ) -> Generator[BinlogBlock | BinlogPart, None, None]:
        with self._open_channel() as channel, self._open(channel, after_ts, metadata) as stream:
            order = _PulledOrder(after_ts)
            try:
                for messages in stream.receive_batches():
                    for one in _parse_messages(messages):
                        order.check(one)
                        is_over = order.last >= until_ts and not order.is_open
                        yield _cut_block(one, until_ts) if is_over else one
                        if is_over:
                            return
            except RpcError as error:
                raise self._translate_error(error, order.last) from None
            except (DecodeError, WireError) as error:
                raise WireError(
                    f"the answer of the pump is not a PullBinlogResp: {error}",
                    where=self._describe_position(order.last),
                ) from None
            raise SourceUnavailable("the pump ended the stream", where=self._describe_position(order.last))

    def read_info(self) -> PumpInfo:
        """Call PumpAdmin/Info. Raises SourceUnavailable; WireError if the pump has no such service (an original)."""
        with self._open_channel() as channel:
            try:
                answer = channel.call("/binlake.wire.PumpAdmin/Info", InfoReq().SerializeToString(), self._timeout_s)
            except RpcError as error:
                if error.status is Status.UNIMPLEMENTED:
                    raise WireError("the pump has no Info service", where={"pump": self.addr}) from None
                raise self._translate_error(error, 0) from None
        response = InfoResp.FromString(answer)
        values = {field.name: getattr(response, field.name) for field in response.DESCRIPTOR.fields}
        return PumpInfo(**{**values, "lost_commit_ts": tuple(response.lost_commit_ts)})

    def measure_range(self, after_ts: int, upto_ts: int, part_bytes: int) -> RangeSize | None:
        """About how many bytes (after_ts, upto_ts] has, and where to divide it; None if the pump cannot tell.

        An original pump, and one of an older version, cannot. Raises SourceUnavailable.
        """
        request = MeasureRangeReq(after_ts=after_ts, upto_ts=upto_ts, part_bytes=part_bytes)
        with self._open_channel() as channel:
            try:
                answer = channel.call(
                    "/binlake.wire.PumpAdmin/MeasureRange", request.SerializeToString(), self._timeout_s
                )
            except RpcError as error:
                if error.status is Status.UNIMPLEMENTED:
                    return None
                raise self._translate_error(error, after_ts) from None
        response = MeasureRangeResp.FromString(answer)
        return RangeSize(response.bytes, tuple(response.cuts))

    def _open_channel(self) -> Channel:
        return Channel(self.addr, tls=self._tls, connect_timeout_s=self._timeout_s)

    def _open(self, channel: Channel, after_ts: int, metadata: Sequence[tuple[str, str]] = ()) -> MessageStream:
        request = PullBinlogReq(clusterID=self.cluster_id, startFrom=Pos(offset=after_ts)).SerializeToString()
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                idle_s = self._idle_timeout_s
                return channel.open_stream(
                    "/binlog.Pump/PullBinlogs", request, idle_timeout_s=idle_s, metadata=metadata
                )
            except RpcError as error:
                # A pump that is being restarted answers again soon.
                if time.monotonic() + _RETRY_S > until:
                    raise SourceUnavailable(
                        f"the pump cannot be reached within {self._timeout_s:g} s: {error.message}",
                        where=self._describe_position(after_ts),
                    ) from None
            time.sleep(_RETRY_S)

    def _receive(self, stream: MessageStream, after_ts: int, until_ts: int | None) -> Iterator[Pulled]:
        last = after_ts
        parse = PullBinlogResp.FromString
        try:
            for batch in stream.receive_batches():
                for message in batch:
                    entity = parse(message).entity
                    meta = entity.meta
                    last = meta.commitTs
                    yield last, meta.startTs, entity.payload
                    if until_ts is not None and last >= until_ts:
                        return
        except RpcError as error:
            raise self._translate_error(error, last) from None
        except DecodeError as error:
            raise WireError(
                f"the answer of the pump is not a PullBinlogResp: {error}", where=self._describe_position(last)
            ) from None
        raise SourceUnavailable("the pump ended the stream", where=self._describe_position(last))

    def _translate_error(self, error: RpcError, last: int) -> BinlakeError:
        if error.status is Status.DEADLINE_EXCEEDED:
            return SourceUnavailable(
                f"the pump sent nothing for {self._idle_timeout_s:g} s: its watermark does not advance",
                where=self._describe_position(last),
                hint="its Info shows why: a prewrite without a commit or rollback, or no timestamps from PD",
            )
        kind = _KINDS.get(error.status, SourceUnavailable)
        return kind(f"pull failed: {error.message} ({error.status.name})", where=self._describe_position(last))

    def _describe_position(self, after_ts: int) -> dict[str, object]:
        return {"pump": self.addr, "after_ts": after_ts}


class _PulledOrder:
    """Checks that binlogs come in ascending commit_ts, and the parts of a large one after each other.

    `last`: the commit_ts of the last one that came; `is_open`: more parts of it must follow.
    """

    def __init__(self, after_ts: int) -> None:
        self.last = after_ts
        self.is_open = False
        self._next = (0, 0, 0)

    def check(self, one: BinlogBlock | BinlogPart) -> None:
        """Raises WireError."""
        if isinstance(one, BinlogBlock):
            if self.is_open:
                raise WireError("a large binlog is not complete")
            if one.commit_ts[0] <= self.last or (np.diff(one.commit_ts) <= 0).any():
                raise WireError("its commit_ts are not ascending")
            self.last = int(one.commit_ts[-1])
            return
        expected = self._next if self.is_open else (max(one.commit_ts, self.last + 1), one.size, 0)
        if (one.commit_ts, one.size, one.offset) != expected:
            raise WireError("the parts of a large binlog do not follow each other")
        self.last, self.is_open = one.commit_ts, not one.is_last
        self._next = one.commit_ts, one.size, one.offset + len(one.data)


def _cut_block(one: BinlogBlock | BinlogPart, until_ts: int) -> BinlogBlock | BinlogPart:
    """Without the binlogs after the first one at or above `until_ts`."""
    if isinstance(one, BinlogPart):
        return one
    return one.take_first(int(np.searchsorted(one.commit_ts, until_ts)) + 1)


def _parse_messages(messages: Sequence[bytes]) -> Iterator[BinlogBlock | BinlogPart]:
    """The binlogs of `messages` in their order. Raises DecodeError, WireError."""
    single: list[tuple[int, int, bytes]] = []
    for message in messages:
        if not message.startswith((blocks.MAGIC, blocks.PART_MAGIC)):
            entity = PullBinlogResp.FromString(message).entity
            single.append((entity.meta.commitTs, entity.meta.startTs, entity.payload))
            continue
        if single:
            yield blocks.build_block(*zip(*single, strict=True))
            single = []
        yield blocks.read_block(message) if message.startswith(blocks.MAGIC) else blocks.read_part(message)
    if single:
        yield blocks.build_block(*zip(*single, strict=True))
