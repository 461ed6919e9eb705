"""The keys of the embedded etcd in memory: revisions, ranges, compares, and recent changes.

Pure state: nothing here waits, writes a file or reads a clock. Errors are built-in ones that `etcd_service` turns into
etcd's status codes: ValueError (invalid argument), KeyError (no such lease), IndexError (compacted or future revision).
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence

from binlake.wire import etcd_pb2 as pb

HISTORY = 20_000
"""Number of changes held for watches and reads that start in the past; older revisions count as compacted."""
COMPACTED = "etcdserver: mvcc: required revision has been compacted"


class PdMvcc:
    """The state at `revision`; changes at or below `compacted` are no longer held."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self._live: dict[bytes, pb.KeyValue] = {}
        self._keys: list[bytes] = []
        self._history: deque[pb.Event] = deque()

    def list_entries(self) -> Iterable[pb.KeyValue]:
        """All present entries."""
        return self._live.values()

    def list_keys_of_lease(self, lease: int) -> list[bytes]:
        """The keys attached to `lease`."""
        return [key for key, kv in self._live.items() if kv.lease == lease]

    def read_range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """KV.Range, of the present or a past revision. Raises ValueError, IndexError."""
        if not request.key:
            raise ValueError("etcdserver: key is not provided")
        kvs = [kv for kv in self._select(request) if _is_in_revisions(kv, request)]
        if request.sort_order != pb.RangeRequest.NONE or request.sort_target != pb.RangeRequest.KEY:
            kvs.sort(key=_SORT[request.sort_target], reverse=request.sort_order == pb.RangeRequest.DESCEND)
        selected = kvs[: request.limit] if request.limit else kvs
        if request.keys_only:
            selected = [_without_value(kv) for kv in selected]
        more = len(selected) < len(kvs)
        return pb.RangeResponse(kvs=[] if request.count_only else selected, more=more, count=len(kvs))

    def holds(self, compare: pb.Compare) -> bool:
        """Whether the compare of a Txn holds; a missing key counts as zeros and has no value to compare."""
        if not compare.range_end:
            return _holds(self._live.get(compare.key), compare)
        keys = _slice(self._keys, compare.key, compare.range_end)
        return all(_holds(self._live[key], compare) for key in keys) if keys else _holds(None, compare)

    def apply(
        self, operations: Sequence[pb.RequestOp], leases: Container[int]
    ) -> tuple[list[pb.ResponseOp], list[pb.Event]]:
        """Apply all of `operations` as revision + 1, or none; the caller publishes or undoes the events.

        Raises ValueError, KeyError, IndexError.
        """
        _check_distinct(operations)
        events: list[pb.Event] = []
        try:
            return [self._apply(operation, leases, events) for operation in operations], events
        except (ValueError, KeyError, IndexError):
            self.undo(events)
            raise

    def undo(self, events: Sequence[pb.Event]) -> None:
        """Undo events that were applied and not published."""
        for event in reversed(events):
            if event.HasField("prev_kv"):
                self._set(event.prev_kv)
            else:
                self._unset(event.kv.key)

    def publish(self, revision: int, events: Sequence[pb.Event]) -> None:
        """Set `revision` and record `events`, which are already applied."""
        self.revision = revision
        self._history.extend(events)
        while len(self._history) > HISTORY:
            self.compacted = self._history.popleft().kv.mod_revision

    def replay(self, revision: int, events: Sequence[pb.Event]) -> None:
        """Apply and publish events from the journal."""
        for event in events:
            if event.type == pb.Event.PUT:
                self._set(event.kv)
            elif event.kv.key in self._live:  # the key is missing because its entry was damaged and dropped by command
                self._unset(event.kv.key)
        self.publish(revision, events)

    def load(self, revision: int, kvs: Iterable[pb.KeyValue]) -> None:
        """Load the state from a snapshot, without the changes that led to it."""
        for kv in kvs:
            self._set(kv)
        self.revision = self.compacted = revision

    def list_events_since(self, revision: int, key: bytes, range_end: bytes) -> list[pb.Event]:
        """The matching events at or above `revision`, in order. Raises IndexError when some are no longer held."""
        if revision <= self.compacted:
            raise IndexError(COMPACTED)
        recent = itertools.takewhile(lambda event: event.kv.mod_revision >= revision, reversed(self._history))
        return [event for event in recent if _is_within(event.kv.key, key, range_end)][::-1]

    def _select(self, request: pb.RangeRequest) -> list[pb.KeyValue]:
        state: Mapping[bytes, pb.KeyValue] = self._live
        keys: Sequence[bytes] = self._keys
        if 0 < request.revision != self.revision:
            state = self._compute_state_at(request.revision)
            keys = sorted(state)
        if not request.range_end:
            return [state[request.key]] if request.key in state else []
        return [state[key] for key in _slice(keys, request.key, request.range_end)]

    def _compute_state_at(self, revision: int) -> dict[bytes, pb.KeyValue]:
        if revision > self.revision:
            raise IndexError("etcdserver: mvcc: required revision is a future revision")
        if revision < self.compacted:
            raise IndexError(COMPACTED)
        state = dict(self._live)
        for event in itertools.takewhile(lambda e: e.kv.mod_revision > revision, reversed(self._history)):
            if event.HasField("prev_kv"):
                state[event.kv.key] = event.prev_kv
            else:
                del state[event.kv.key]
        return state

    def _apply(self, operation: pb.RequestOp, leases: Container[int], events: list[pb.Event]) -> pb.ResponseOp:
        kind = operation.WhichOneof("request")
        if kind == "request_put":
            return pb.ResponseOp(response_put=self._put(operation.request_put, leases, events))
        if kind == "request_delete_range":
            return pb.ResponseOp(response_delete_range=self._delete(operation.request_delete_range, events))
        if kind == "request_range":
            return pb.ResponseOp(response_range=self.read_range(operation.request_range))
        raise ValueError("etcdserver: nested transactions are not supported by this server")

    def _put(self, request: pb.PutRequest, leases: Container[int], events: list[pb.Event]) -> pb.PutResponse:
        old, revision = self._live.get(request.key), self.revision + 1
        _check_put(request, old, leases)
        kv = pb.KeyValue(
            key=request.key,
            value=old.value if old and request.ignore_value else request.value,
            lease=old.lease if old and request.ignore_lease else request.lease,
            create_revision=old.create_revision if old else revision,
            mod_revision=revision,
            version=old.version + 1 if old else 1,
        )
        self._set(kv)
        events.append(pb.Event(type=pb.Event.PUT, kv=kv, prev_kv=old))
        return pb.PutResponse(prev_kv=old if request.prev_kv else None)

    def _delete(self, request: pb.DeleteRangeRequest, events: list[pb.Event]) -> pb.DeleteRangeResponse:
        if not request.key:
            raise ValueError("etcdserver: key is not provided")
        removed = self._select(pb.RangeRequest(key=request.key, range_end=request.range_end))
        for old in removed:
            self._unset(old.key)
            kv = pb.KeyValue(key=old.key, mod_revision=self.revision + 1)
            events.append(pb.Event(type=pb.Event.DELETE, kv=kv, prev_kv=old))
        return pb.DeleteRangeResponse(deleted=len(removed), prev_kvs=removed if request.prev_kv else [])

    def _set(self, kv: pb.KeyValue) -> None:
        if kv.key not in self._live:
            bisect.insort(self._keys, kv.key)
        self._live[kv.key] = kv

    def _unset(self, key: bytes) -> None:
        del self._keys[bisect.bisect_left(self._keys, key)]
        del self._live[key]


def _check_put(request: pb.PutRequest, old: pb.KeyValue | None, leases: Container[int]) -> None:
    if not request.key:
        raise ValueError("etcdserver: key is not provided")
    if old is None and (request.ignore_value or request.ignore_lease):
        raise ValueError("etcdserver: key not found")
    if request.lease and request.lease not in leases:
        raise KeyError("etcdserver: requested lease not found")


def _check_distinct(operations: Sequence[pb.RequestOp]) -> None:
    puts = [op.request_put.key for op in operations if op.HasField("request_put")]
    deletes = [op.request_delete_range for op in operations if op.HasField("request_delete_range")]
    overlap = any(_is_within(key, delete.key, delete.range_end) for key in puts for delete in deletes)
    if overlap or len(set(puts)) < len(puts):
        raise ValueError("etcdserver: duplicate key given in txn request")


def _holds(kv: pb.KeyValue | None, compare: pb.Compare) -> bool:
    field = _COMPARED[compare.target]
    if kv is None and field == "value":
        return False
    return bool(_COMPARE[compare.result](getattr(kv or pb.KeyValue(), field), getattr(compare, field)))


def _is_in_revisions(kv: pb.KeyValue, request: pb.RangeRequest) -> bool:
    bounds = (
        (kv.mod_revision, request.min_mod_revision, request.max_mod_revision),
        (kv.create_revision, request.min_create_revision, request.max_create_revision),
    )
    return all(low <= revision and (not high or revision <= high) for revision, low, high in bounds)


def _slice(keys: Sequence[bytes], key: bytes, range_end: bytes) -> Sequence[bytes]:
    first = bisect.bisect_left(keys, key)
    return keys[first : len(keys) if range_end == b"\0" else bisect.bisect_left(keys, range_end)]


def _is_within(key: bytes, start: bytes, range_end: bytes) -> bool:
    if not range_end:
        return key == start
    return key >= start and (range_end == b"\0" or key < range_end)


def _without_value(kv: pb.KeyValue) -> pb.KeyValue:
    copy = pb.KeyValue()
    copy.CopyFrom(kv)
    copy.ClearField("value")
    return copy


_COMPARED = {
    pb.Compare.VERSION: "version",
    pb.Compare.CREATE: "create_revision",
    pb.Compare.MOD: "mod_revision",
    pb.Compare.VALUE: "value",
    pb.Compare.LEASE: "lease",
}
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
