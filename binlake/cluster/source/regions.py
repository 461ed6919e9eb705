"""TiKV's regions and its GC safe point, by calls to PD's leader (kvproto: pdpb, metapb).

A region is looked up by the encoded key, cached, and removed from the cache when TiKV reports that it has moved.

A snapshot is protected from GC while it is read: by a service safe point at PD, renewed while the context `hold_gc` is
open. After a crash the safe point stays for at most `HOLD_S`. A placement driver without TiKV has no GC.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from google.protobuf.message import DecodeError

from binlake.cluster.placement.channel import build_unavailable_error, parse_urls
from binlake.errors import LostRange, SourceUnavailable
from binlake.rpc import Channel, RpcError, Status, Tls
from binlake.wire import pd_pb2 as pd
from binlake.wire import tikv_pb2 as pb

if TYPE_CHECKING:
    from binlake.config.servers import SourceSection

log = structlog.get_logger(__name__)

_GROUP = 8
HOLD_S = 600
_RENEW_S = HOLD_S / 4


def encode_key(key: bytes) -> bytes:
    """`key` as TiKV and PD sort it (memcomparable bytes): groups of 8, each followed by 255 minus its padding."""
    parts = []
    for at in range(0, len(key) + 1, _GROUP):
        group = key[at : at + _GROUP]
        parts.append(group.ljust(_GROUP, b"\0") + bytes((255 - _GROUP + len(group),)))
    return b"".join(parts)


@dataclass(slots=True, eq=False)
class RegionLocation:
    """A region: encoded keys from `start` to before `end` (empty = no end), and the context that TiKV requires."""

    start: bytes
    end: bytes
    context: pb.Context

    def holds(self, key: bytes) -> bool:
        """Whether the encoded `key` is in the region."""
        return self.start <= key and (not self.end or key < self.end)


class RegionClient:
    """Regions, stores and the GC safe point of one cluster. Thread-safe. `tls`: for PD urls of https://.

    Methods raise SourceUnavailable if no PD answers, or if the leader has no answer.
    """

    def __init__(self, urls: Sequence[str], timeout_s: float = 10.0, tls: Tls | None = None) -> None:
        self._urls = list(urls)
        self._timeout_s = timeout_s
        self._tls = tls
        self._lock = threading.RLock()
        self._leader: tuple[Channel, int] | None = None
        self._locations: list[RegionLocation] = []
        self._stores: dict[int, str] = {}

    def has_tikv(self) -> bool:
        """Whether this PD has regions: the embedded PD has none, nor has a PD that no TiKV has joined yet."""
        try:
            self._ask("GetGCSafePoint", pb.GetGCSafePointRequest(), pb.GetGCSafePointResponse)
        except _NoTikv:
            return False
        return True

    def find(self, key: bytes) -> RegionLocation:
        """The region that contains the raw `key`."""
        encoded = encode_key(key)
        with self._lock:
            at = bisect_right(self._locations, encoded, key=lambda location: location.start) - 1
            if at >= 0 and self._locations[at].holds(encoded):
                return self._locations[at]
            return self._load(encoded)

    def forget(self, location: RegionLocation) -> None:
        """Remove the region and the address of its store from the cache, so that PD is asked again."""
        with self._lock:
            self._locations = [one for one in self._locations if one is not location]
            self._stores.pop(location.context.peer.store_id, None)

    def lead(self, location: RegionLocation, peer: pb.Peer) -> None:
        """Note that `peer` is now the leader of the region, as TiKV reports."""
        location.context.peer.CopyFrom(peer)

    def find_address(self, location: RegionLocation) -> str:
        """HOST:PORT of the store with the region's leader."""
        store_id = location.context.peer.store_id
        with self._lock:
            if store_id not in self._stores:
                answer = self._ask("GetStore", pb.GetStoreRequest(store_id=store_id), pb.GetStoreResponse)
                self._stores[store_id] = answer.store.address
            return self._stores[store_id]

    def hold_gc(self, service: str, safe_point: int, ttl_s: int) -> int:
        """Ask PD to keep GC at or below `safe_point` for `ttl_s` seconds (0 = end this).

        Returns the lowest safe point of all services; a value above `safe_point` is a refusal: GC may have passed it.
        """
        request = pb.UpdateServiceGCSafePointRequest(service_id=service.encode(), ttl=ttl_s, safe_point=safe_point)
        answer = self._ask("UpdateServiceGCSafePoint", request, pb.UpdateServiceGCSafePointResponse)
        return int(answer.min_safe_point)

    def fetch_gc_safe_point(self) -> int:
        """Row versions that were overwritten before this ts may have been removed; 0 = none yet."""
        answer = self._ask("GetGCSafePoint", pb.GetGCSafePointRequest(), pb.GetGCSafePointResponse)
        return int(answer.safe_point)

    def close(self) -> None:
        """Close the connection; the client can be used again."""
        with self._lock:
            self._lose()

    def _load(self, encoded: bytes) -> RegionLocation:
        answer = self._ask("GetRegion", pb.GetRegionRequest(region_key=encoded), pb.GetRegionResponse)
        region = answer.region
        if not region.id or not answer.leader.id:
            raise build_unavailable_error(self._urls, "PD knows no leader of the region")
        context = pb.Context(region_id=region.id, region_epoch=region.region_epoch, peer=answer.leader)
        location = RegionLocation(region.start_key, region.end_key, context)
        others = [one for one in self._locations if not _overlap(one, location)]
        self._locations = sorted([*others, location], key=lambda one: one.start)
        return location

    def _ask(self, method: str, request: Any, answer_type: Any) -> Any:
        with self._lock:
            for last in (False, True):
                channel, request.header.cluster_id = self._leader or self._connect()
                try:
                    answer = answer_type.FromString(
                        channel.call(f"/pdpb.PD/{method}", request.SerializeToString(), self._timeout_s)
                    )
                    if answer.header.error.type == pd.OK:
                        return answer
                    if answer.header.error.type == pd.NOT_BOOTSTRAPPED:
                        raise _NoTikv("no TiKV has joined this PD")
                    reason = answer.header.error.message
                except (RpcError, DecodeError) as error:
                    if isinstance(error, RpcError) and error.status is Status.UNIMPLEMENTED:
                        raise _NoTikv(f"this PD does not serve {method}: it has no TiKV") from None
                    reason = str(error)
                # The leader may have changed.
                self._lose()
                if last:
                    raise build_unavailable_error(self._urls, f"{method}: {reason}")
        raise AssertionError("unreachable")

    def _connect(self) -> tuple[Channel, int]:
        reasons = []
        for target, encrypted in parse_urls(self._urls):
            try:
                self._leader = self._connect_leader(target, encrypted)
            except (RpcError, DecodeError) as error:
                reasons.append(f"{target}: {error}")
            else:
                return self._leader
        raise build_unavailable_error(self._urls, "; ".join(reasons))

    def _connect_leader(self, target: str, encrypted: bool) -> tuple[Channel, int]:
        """The channel to the leader that the PD at `target` names, and the cluster's id."""
        channel = self._open_channel(target, encrypted)
        try:
            answer = pd.GetMembersResponse.FromString(
                channel.call("/pdpb.PD/GetMembers", pd.GetMembersRequest().SerializeToString(), self._timeout_s)
            )
        except BaseException:
            channel.close()
            raise
        # A single PD is the leader, whatever address it advertises.
        if len(answer.members) > 1 and answer.leader.client_urls:
            channel.close()
            channel = self._open_channel(*parse_urls(answer.leader.client_urls)[0])
        return channel, answer.header.cluster_id

    def _open_channel(self, target: str, encrypted: bool) -> Channel:
        return Channel(target, tls=(self._tls or Tls()) if encrypted else None, connect_timeout_s=self._timeout_s)

    def _lose(self) -> None:
        if self._leader is not None:
            self._leader[0].close()
        self._leader = None


class _NoTikv(SourceUnavailable):
    """A PD without TiKV."""


def _overlap(first: RegionLocation, second: RegionLocation) -> bool:
    return (not first.end or second.start < first.end) and (not second.end or first.start < second.end)


@contextmanager
def hold_gc(source: SourceSection, service: str, ts: int, renew_s: float = _RENEW_S) -> Iterator[None]:
    """Keep rows as of `ts` readable inside the context. Raises LostRange if GC has passed `ts`, SourceUnavailable."""
    tls = Tls.of(*source.security.list_files())
    with closing(RegionClient(list(source.pd_urls), source.timeout_s, tls)) as regions:
        if not regions.has_tikv():
            log.info("gc_not_held", reason="this placement driver has no TiKV", commit_ts=str(ts))
            yield
            return
        _set_safe_point(regions, service, ts)
        is_done = threading.Event()
        renewing = threading.Thread(target=_renew, args=(regions, service, ts, renew_s, is_done), name="gc-hold")
        renewing.start()
        try:
            yield
        finally:
            is_done.set()
            renewing.join()
            _release(regions, service)


def _set_safe_point(regions: RegionClient, service: str, ts: int) -> None:
    least = regions.hold_gc(service, ts, HOLD_S)
    if least > ts:
        raise LostRange(
            "TiKV's GC has passed the snapshot: rows of that time may have been removed",
            where={"commit_ts": ts, "safe_point": least},
            hint="raise tidb_gc_life_time; start the load again with a new lake folder and a current snapshot",
        )


def _renew(regions: RegionClient, service: str, ts: int, renew_s: float, is_done: threading.Event) -> None:
    while not is_done.wait(renew_s):
        try:
            _set_safe_point(regions, service, ts)
        except (SourceUnavailable, LostRange) as error:
            # The safe point holds for some more minutes. If GC passes it after all, TiDB refuses the next read.
            log.warning("gc_hold_not_renewed", commit_ts=str(ts), error=str(error))


def _release(regions: RegionClient, service: str) -> None:
    try:
        regions.hold_gc(service, 0, 0)
    except SourceUnavailable as error:
        log.warning("gc_hold_left_to_expire", seconds=HOLD_S, error=str(error))
