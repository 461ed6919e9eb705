"""The placement driver of the simulated cluster: the product's clock and store behind simulated calls, and clients."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from binlake.cluster.placement import EtcdClient
from binlake.cluster.placement.etcd import compute_prefix_end
from binlake.cluster.pumpclient import reader
from binlake.errors import BinlakeError, LostRange, Permanent, SourceUnavailable
from binlake.pump_service.pd.kvstore import KvStore
from binlake.pump_service.pd.oracle import Oracle
from binlake.pump_service.pump import lean_server
from binlake.rpc import RpcError, Status
from binlake.wire import etcd_pb2 as pb
from binlake.wire import etcd_rpc
from simulator.scheduler import Scheduler

ADDRESS = "pd:2379"
CLUSTER = 7_000_000_000_000_000_001
_WAIT_S = 0.5
_LONG = struct.Struct("<q")


class WallClock:
    """Unix milliseconds of PD's machine, which can be stepped."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_ms = 0

    def __call__(self) -> int:
        return int(self._scheduler.now * 1000) + self.offset_ms


class PlacementNode:
    """One process of PD on the files in `folder`. `given`: called with each timestamp before it is answered. `more`:
    what it also serves, by path."""

    def __init__(
        self, folder: Path, clock: WallClock, given: Any, more: Mapping[str, Callable[[bytes], bytes]]
    ) -> None:
        self._given = given
        self.oracle = Oracle(folder, now_ms=clock)
        self.store = KvStore(folder)
        self.rpc = lean_server.RpcServer(name="pd")
        self.rpc.add_blocking("/pd/tso", self._tso)
        self.rpc.add_blocking("/pd/watch", self._watch)
        for path, call in (
            (etcd_rpc.RANGE, self.store.read_range),
            (etcd_rpc.PUT, self.store.put),
            (etcd_rpc.DELETE_RANGE, self.store.delete_range),
            (etcd_rpc.TXN, self.store.run_txn),
            (etcd_rpc.LEASE_GRANT, self.store.grant),
            (etcd_rpc.LEASE_REVOKE, lambda request: self.store.revoke(request.ID)),
            (etcd_rpc.LEASE_KEEP_ALIVE, lambda request: self.store.keep_alive(request.ID)),
        ):
            self.rpc.add_blocking(path.path, lambda data, path=path, call=call: _answered(path, call, data))
        for name, work in more.items():
            self.rpc.add_blocking(name, work)
        self.rpc.listen(ADDRESS)
        self.rpc.start()

    @property
    def broken(self) -> bool:
        """Whether it accepts no more changes of the registry until it is restarted."""
        return self.store.is_broken

    def _tso(self, message: bytes) -> bytes:
        (count,) = _LONG.unpack(message)
        try:
            last = self.oracle.take(count)
        except OSError as error:
            raise RpcError(Status.INTERNAL, f"the clock's bound cannot be saved: {error}") from None
        except BinlakeError as error:
            raise RpcError(Status.INTERNAL, str(error)) from None
        self._given(last, count)
        return _LONG.pack(last)

    def _watch(self, message: bytes) -> bytes:
        request = pb.WatchCreateRequest.FromString(message)
        try:
            revision, events = self.store.wait_changes(request.start_revision, request.key, request.range_end, _WAIT_S)
        except IndexError as error:
            raise RpcError(Status.OUT_OF_RANGE, str(error)) from None
        header = pb.ResponseHeader(revision=revision)
        answer: bytes = pb.WatchResponse(header=header, events=events).SerializeToString()
        return answer


def _answered(method: Any, call: Any, message: bytes) -> bytes:
    try:
        answer: bytes = call(method.request.FromString(message)).SerializeToString()
    except OSError as error:
        raise RpcError(Status.INTERNAL, str(error)) from None
    except (ValueError, KeyError, IndexError) as error:
        raise RpcError(Status.INVALID_ARGUMENT, str(error)) from None
    return answer


def _failed(error: RpcError) -> BinlakeError:
    if error.status is Status.INVALID_ARGUMENT:
        return Permanent(f"PD refused: {error.message}")
    return SourceUnavailable(f"PD cannot be reached: {error.message}")


class SimulatedPd:
    """PdClient."""

    def __init__(self, urls: Sequence[str] = (), timeout_s: float = 5.0, *, tls: object = None) -> None:
        del urls, tls
        self._timeout_s = timeout_s
        self._channel = channel_to_pd()

    def fetch_cluster_id(self) -> int:
        """The cluster id from the configuration."""
        return CLUSTER

    def fetch_ts(self, count: int = 1) -> int:
        """The last of `count` timestamps. Raises SourceUnavailable."""
        try:
            answer = self._channel.call("/pd/tso", _LONG.pack(count), self._timeout_s)
        except RpcError as error:
            raise _failed(error) from None
        return int(_LONG.unpack(answer)[0])

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class SimulatedEtcd(EtcdClient):
    """The product's EtcdClient on the simulated network."""

    def __init__(self, urls: Sequence[str] = (), timeout_s: float = 5.0, *, tls: object = None) -> None:
        del urls, tls
        super().__init__([f"http://{ADDRESS}"], timeout_s)
        self._link = channel_to_pd()

    def _call(self, method: Any, request: Any) -> Any:
        try:
            answer = self._link.call(method.path, request.SerializeToString(), self._timeout_s)
        except RpcError as error:
            raise _failed(error) from None
        return method.response.FromString(answer)

    def keep_lease_alive(self, lease_id: int) -> int:
        """Renew once."""
        ttl: int = self._call(etcd_rpc.LEASE_KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease_id)).TTL
        return ttl

    def watch(self, prefix: bytes, start_revision: int = 0) -> Any:
        """Changes under `prefix`."""
        return SimulatedWatch(prefix, start_revision)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


class SimulatedWatch:
    """Watch, implemented by long calls."""

    def __init__(self, prefix: bytes, since: int) -> None:
        self._request = pb.WatchCreateRequest(key=prefix, range_end=compute_prefix_end(prefix), start_revision=since)
        self._channel = channel_to_pd()
        self._ended = False

    def cancel(self) -> None:
        """End it."""
        self._ended = True

    def __iter__(self) -> Iterator[tuple[int, pb.Event]]:
        while not self._ended:
            try:
                answer = self._channel.call("/pd/watch", self._request.SerializeToString(), 5.0)
            except RpcError as error:
                kind = LostRange if error.status is Status.OUT_OF_RANGE else SourceUnavailable
                raise kind(f"the watch ended: {error.message}") from None
            response = pb.WatchResponse.FromString(answer)
            self._request.start_revision = max(self._request.start_revision, response.header.revision + 1)
            for event in response.events:
                yield event.kv.mod_revision, event


def channel_to_pd() -> Any:
    """A channel to PD, of the class that replaces binlake.rpc.Channel in this run."""

    return reader.Channel(ADDRESS, connect_timeout_s=2.0)
