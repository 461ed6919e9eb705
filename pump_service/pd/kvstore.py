"""A small MVCC key-value store with etcd's semantics: revisions, transactions, watches from a past revision, leases."""

from __future__ import annotations

import bisect
import itertools
import operator
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from binlake.wire import etcd_pb2 as pb
from pump_service.pd.journal import EVENTS, GRANT, REVOKE, Journal, Record

HISTORY = 20_000
"""Events kept for watches that start in the past; older revisions count as compacted."""
COMPACT_BYTES = 8 << 20


@dataclass
class Lease:
    """A lease of `ttl_s` seconds that ends at `deadline` (monotonic)."""

    ttl_s: int
    deadline: float


class KvStore:
    """Thread-safe. Every change is in the journal before the call returns."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._live: dict[bytes, pb.KeyValue] = {}
        self._keys: list[bytes] = []
        self._events: deque[pb.Event] = deque()
        self._leases: dict[int, Lease] = {}
        self.revision = 1
        self.compacted = 0
        self._closed = False
        self._journal = Journal(folder / "etcd.journal")
        self._recover()

    def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """KV.Range at the present revision. Raises ValueError for a past one."""
        if request.revision and request.revision < self.revision:
            raise ValueError("past revisions are not kept for reads")
        with self._changed:
            kvs = [self._live[key] for key in self._select(request.key, request.range_end)]
            count = len(kvs)
            if request.sort_order == pb.RangeRequest.DESCEND or request.sort_target != pb.RangeRequest.KEY:
                kvs.sort(key=_SORT[request.sort_target], reverse=request.sort_order == pb.RangeRequest.DESCEND)
            more = bool(request.limit) and count > request.limit
            kvs = kvs[: request.limit] if request.limit else kvs
            if request.keys_only:
                kvs = [_without_value(kv) for kv in kvs]
            return pb.RangeResponse(header=self.header(), kvs=[] if request.count_only else kvs, more=more, count=count)

    def put(self, request: pb.PutRequest) -> pb.PutResponse:
        """KV.Put. Raises KeyError for an unknown lease."""
        response: pb.ResponseOp = self._write([pb.RequestOp(request_put=request)])[0]
        return response.response_put

    def delete_range(self, request: pb.DeleteRangeRequest) -> pb.DeleteRangeResponse:
        """KV.DeleteRange."""
        response: pb.ResponseOp = self._write([pb.RequestOp(request_delete_range=request)])[0]
        return response.response_delete_range

    def txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """KV.Txn: all compares hold -> success, else failure; one revision for all its changes."""
        with self._changed:
            succeeded = all(self._holds(compare) for compare in request.compare)
            responses = self._write(request.success if succeeded else request.failure)
            return pb.TxnResponse(header=self.header(), succeeded=succeeded, responses=responses)

    def grant(self, request: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        """Lease.LeaseGrant."""
        with self._changed:
            lease_id = request.ID or random.getrandbits(62) | 1
            granted = pb.LeaseGrantRequest(TTL=max(request.TTL, 1), ID=lease_id)
            self._journal.append([(GRANT, granted.SerializeToString())])
            self._leases[lease_id] = Lease(granted.TTL, self._clock() + granted.TTL)
            return pb.LeaseGrantResponse(header=self.header(), ID=lease_id, TTL=granted.TTL)

    def revoke(self, lease_id: int) -> None:
        """Lease.LeaseRevoke: deletes its keys. Raises KeyError."""
        with self._changed:
            del self._leases[lease_id]
            self._journal.append([(REVOKE, pb.LeaseRevokeRequest(ID=lease_id).SerializeToString())])
            keys = [key for key, kv in self._live.items() if kv.lease == lease_id]
            self._write([pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key)) for key in keys])

    def keep_alive(self, lease_id: int) -> int:
        """Renew; the seconds granted, 0 for an unknown lease."""
        with self._changed:
            lease = self._leases.get(lease_id)
            if lease is None:
                return 0
            lease.deadline = self._clock() + lease.ttl_s
            return lease.ttl_s

    def time_to_live(self, lease_id: int) -> pb.LeaseTimeToLiveResponse:
        """Lease.LeaseTimeToLive; TTL -1 for an unknown lease."""
        with self._changed:
            lease = self._leases.get(lease_id)
            if lease is None:
                return pb.LeaseTimeToLiveResponse(header=self.header(), ID=lease_id, TTL=-1)
            left = max(int(lease.deadline - self._clock()), 0)
            keys = [key for key, kv in self._live.items() if kv.lease == lease_id]
            return pb.LeaseTimeToLiveResponse(
                header=self.header(), ID=lease_id, TTL=left, grantedTTL=lease.ttl_s, keys=keys
            )

    def expire(self) -> None:
        """End the leases whose time is over."""
        with self._changed:
            now = self._clock()
            for lease_id in [key for key, lease in self._leases.items() if lease.deadline <= now]:
                self.revoke(lease_id)

    def events_since(self, revision: int, key: bytes, range_end: bytes) -> list[pb.Event]:
        """Events at or above `revision` that match, in order."""
        with self._changed:
            return [e for e in self._events if e.kv.mod_revision >= revision and _within(e.kv.key, key, range_end)]

    def wait_beyond(self, revision: int, timeout_s: float) -> bool:
        """Wait until the revision passes `revision`; False after `timeout_s` or when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.revision > revision, timeout_s)
            return self.revision > revision

    def header(self) -> pb.ResponseHeader:
        """The header of every answer."""
        return pb.ResponseHeader(revision=self.revision, member_id=1, raft_term=1)

    def close(self) -> None:
        """Wake waiters and close the journal."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._journal.close()

    def _select(self, key: bytes, range_end: bytes) -> list[bytes]:
        if not range_end:
            return [key] if key in self._live else []
        first = bisect.bisect_left(self._keys, key)
        return list(itertools.takewhile(lambda k: range_end == b"\0" or k < range_end, self._keys[first:]))

    def _holds(self, compare: pb.Compare) -> bool:
        kv = self._live.get(compare.key, pb.KeyValue())
        field = pb.Compare.CompareTarget.Name(compare.target).lower()
        attribute = {"create": "create_revision", "mod": "mod_revision"}.get(field, field)
        return bool(_COMPARE[compare.result](getattr(kv, attribute), getattr(compare, attribute)))

    def _write(self, operations: Sequence[pb.RequestOp]) -> list[pb.ResponseOp]:
        with self._changed:
            revision, events = self.revision + 1, list[pb.Event]()
            responses = [self._apply(operation, revision, events) for operation in operations]
            if events:
                self._journal.append([_event_record(revision, events)])
                self._publish(revision, events)
            for response in responses:
                getattr(response, response.WhichOneof("response")).header.CopyFrom(self.header())
            return responses

    def _apply(self, operation: pb.RequestOp, revision: int, events: list[pb.Event]) -> pb.ResponseOp:
        kind = operation.WhichOneof("request")
        if kind == "request_put":
            return pb.ResponseOp(response_put=self._put(operation.request_put, revision, events))
        if kind == "request_delete_range":
            return pb.ResponseOp(response_delete_range=self._delete(operation.request_delete_range, revision, events))
        if kind == "request_range":
            return pb.ResponseOp(response_range=self.range(operation.request_range))
        raise ValueError("nested transactions are not supported")

    def _put(self, request: pb.PutRequest, revision: int, events: list[pb.Event]) -> pb.PutResponse:
        if request.lease and request.lease not in self._leases:
            raise KeyError(request.lease)
        old = self._live.get(request.key)
        kv = pb.KeyValue(
            key=request.key,
            value=request.value,
            lease=request.lease,
            create_revision=old.create_revision if old else revision,
            mod_revision=revision,
            version=old.version + 1 if old else 1,
        )
        self._set(kv)
        events.append(pb.Event(type=pb.Event.PUT, kv=kv))
        return pb.PutResponse(prev_kv=old if request.prev_kv else None)

    def _delete(self, request: pb.DeleteRangeRequest, revision: int, events: list[pb.Event]) -> pb.DeleteRangeResponse:
        removed = [self._unset(key) for key in self._select(request.key, request.range_end)]
        events += [pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=kv.key, mod_revision=revision)) for kv in removed]
        return pb.DeleteRangeResponse(deleted=len(removed), prev_kvs=removed if request.prev_kv else [])

    def _set(self, kv: pb.KeyValue) -> None:
        if kv.key not in self._live:
            bisect.insort(self._keys, kv.key)
        self._live[kv.key] = kv

    def _unset(self, key: bytes) -> pb.KeyValue:
        del self._keys[bisect.bisect_left(self._keys, key)]
        return self._live.pop(key)

    def _publish(self, revision: int, events: Sequence[pb.Event]) -> None:
        self.revision = revision
        self._events.extend(events)
        while len(self._events) > HISTORY:
            self.compacted = self._events.popleft().kv.mod_revision
        self._changed.notify_all()
        if self._journal.size() > COMPACT_BYTES:
            self._journal.replace(self._snapshot())

    def _snapshot(self) -> Iterator[Record]:
        for lease_id, lease in self._leases.items():
            yield GRANT, pb.LeaseGrantRequest(TTL=lease.ttl_s, ID=lease_id).SerializeToString()
        yield _event_record(self.revision, [pb.Event(type=pb.Event.PUT, kv=kv) for kv in self._live.values()])

    def _recover(self) -> None:
        for kind, body in self._journal.read():
            if kind == EVENTS:
                self._replay(pb.WatchResponse.FromString(body))
            elif kind == GRANT:
                granted = pb.LeaseGrantRequest.FromString(body)
                # As after a change of leader: every lease gets its whole time again.
                self._leases[granted.ID] = Lease(granted.TTL, self._clock() + granted.TTL)
            elif kind == REVOKE:
                self._leases.pop(pb.LeaseRevokeRequest.FromString(body).ID, None)
        # What happened before is known as a state only.
        self.compacted = self.revision

    def _replay(self, record: pb.WatchResponse) -> None:
        for event in record.events:
            if event.type == pb.Event.PUT:
                self._set(event.kv)
            elif event.kv.key in self._live:
                self._unset(event.kv.key)
        self.revision = record.header.revision


_COMPARE = {
    pb.Compare.EQUAL: operator.eq,
    pb.Compare.GREATER: operator.gt,
    pb.Compare.LESS: operator.lt,
    pb.Compare.NOT_EQUAL: operator.ne,
}
_SORT = {
    pb.RangeRequest.KEY: operator.attrgetter("key"),
    pb.RangeRequest.VERSION: operator.attrgetter("version"),
    pb.RangeRequest.CREATE: operator.attrgetter("create_revision"),
    pb.RangeRequest.MOD: operator.attrgetter("mod_revision"),
    pb.RangeRequest.VALUE: operator.attrgetter("value"),
}


def _within(key: bytes, start: bytes, range_end: bytes) -> bool:
    if not range_end:
        return key == start
    return key >= start and (range_end == b"\0" or key < range_end)


def _without_value(kv: pb.KeyValue) -> pb.KeyValue:
    copy = pb.KeyValue()
    copy.CopyFrom(kv)
    copy.ClearField("value")
    return copy


def _event_record(revision: int, events: Sequence[pb.Event]) -> Record:
    message = pb.WatchResponse(header=pb.ResponseHeader(revision=revision), events=events)
    return EVENTS, message.SerializeToString()
