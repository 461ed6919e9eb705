"""The embedded etcd's store with leases: every change is in the journal before it is visible or answered."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from binlake.pump_service.pd.journal import EVENTS, GRANT, REVOKE, STATE, PdJournal, Record
from binlake.pump_service.pd.mvcc import PdMvcc
from binlake.wire import etcd_pb2 as pb

COMPACT_BYTES = 8 << 20
_LOST_LEASE_S = 60  # for a lease whose entry was dropped, so that its keys do not live forever

log = structlog.get_logger(__name__)


@dataclass
class Lease:
    """A lease of `ttl_s` seconds that ends at `deadline` (monotonic)."""

    ttl_s: int
    deadline: float


class KvStore:
    """Thread-safe. Raises OSError when the journal cannot be written, and what `mvcc` raises.

    `drop_damaged`: start without damaged entries (see `journal`).
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, *, drop_damaged: bool = False
    ) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._mvcc = PdMvcc()
        self._leases: dict[int, Lease] = {}
        self._closed = False
        self._journal = PdJournal(folder / "etcd.journal", drop_damaged=drop_damaged)
        self._compact_at = COMPACT_BYTES
        try:
            self._recover()
            if drop_damaged:
                self._rewrite_clean()
        except BaseException:
            self._journal.close()
            raise

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._mvcc.revision

    @property
    def closed(self) -> bool:
        """Whether `wake` was called: no wait blocks any more."""
        return self._closed

    @property
    def is_broken(self) -> bool:
        """Whether the journal failed a write: no change is accepted until the next start."""
        return self._journal.is_broken

    @property
    def compacted(self) -> int:
        """The last compacted revision; a watch can only start above it."""
        return self._mvcc.compacted

    def read_range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """KV.Range."""
        with self._changed:
            answer = self._mvcc.read_range(request)
            answer.header.CopyFrom(self.build_header())
            return answer

    def put(self, request: pb.PutRequest) -> pb.PutResponse:
        """KV.Put."""
        with self._changed:
            response: pb.PutResponse = self._write([pb.RequestOp(request_put=request)])[0].response_put
            response.header.CopyFrom(self.build_header())
            return response

    def delete_range(self, request: pb.DeleteRangeRequest) -> pb.DeleteRangeResponse:
        """KV.DeleteRange."""
        with self._changed:
            operation = pb.RequestOp(request_delete_range=request)
            response: pb.DeleteRangeResponse = self._write([operation])[0].response_delete_range
            response.header.CopyFrom(self.build_header())
            return response

    def run_txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """KV.Txn: success if all compares hold, else failure; one revision for all its changes."""
        with self._changed:
            succeeded = all(self._mvcc.holds(compare) for compare in request.compare)
            responses = self._write(request.success if succeeded else request.failure)
            for response in responses:
                part = getattr(response, response.WhichOneof("response"))
                part.header.CopyFrom(pb.ResponseHeader(revision=self.revision))
            return pb.TxnResponse(header=self.build_header(), succeeded=succeeded, responses=responses)

    def grant(self, request: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        """Lease.LeaseGrant. Raises FileExistsError for an id in use."""
        with self._changed:
            if request.ID in self._leases:
                raise FileExistsError("etcdserver: lease already exists")
            lease_id = request.ID or random.getrandbits(62) | 1
            granted = pb.LeaseGrantRequest(TTL=max(request.TTL, 1), ID=lease_id)
            self._journal.append([(GRANT, granted.SerializeToString())])
            self._leases[lease_id] = Lease(granted.TTL, self._clock() + granted.TTL)
            return pb.LeaseGrantResponse(header=self.build_header(), ID=lease_id, TTL=granted.TTL)

    def revoke(self, lease_id: int) -> pb.LeaseRevokeResponse:
        """Lease.LeaseRevoke: deletes its keys. Raises KeyError."""
        with self._changed:
            if lease_id not in self._leases:
                raise KeyError("etcdserver: requested lease not found")
            # Delete the keys first: a crash in between then leaves a lease without keys, which expires.
            keys = self._mvcc.list_keys_of_lease(lease_id)
            self._write([pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key)) for key in keys])
            self._journal.append([(REVOKE, pb.LeaseRevokeRequest(ID=lease_id).SerializeToString())])
            del self._leases[lease_id]
            return pb.LeaseRevokeResponse(header=self.build_header())

    def keep_alive(self, lease_id: int) -> pb.LeaseKeepAliveResponse:
        """Renew; TTL 0 for an unknown lease."""
        with self._changed:
            lease = self._leases.get(lease_id)
            if lease is not None:
                lease.deadline = self._clock() + lease.ttl_s
            return pb.LeaseKeepAliveResponse(header=self.build_header(), ID=lease_id, TTL=lease.ttl_s if lease else 0)

    def read_time_to_live(self, request: pb.LeaseTimeToLiveRequest) -> pb.LeaseTimeToLiveResponse:
        """Lease.LeaseTimeToLive; TTL -1 for an unknown lease."""
        with self._changed:
            answer = pb.LeaseTimeToLiveResponse(header=self.build_header(), ID=request.ID, TTL=-1)
            lease = self._leases.get(request.ID)
            if lease is not None:
                answer.TTL = max(int(lease.deadline - self._clock()), 0)
                answer.grantedTTL = lease.ttl_s
                answer.keys.extend(self._mvcc.list_keys_of_lease(request.ID) if request.keys else [])
            return answer

    def expire(self) -> None:
        """End the leases that have expired."""
        with self._changed:
            now = self._clock()
            for lease_id in [key for key, lease in self._leases.items() if lease.deadline <= now]:
                self.revoke(lease_id)

    def wait_changes(self, since: int, key: bytes, range_end: bytes, timeout_s: float) -> tuple[int, list[pb.Event]]:
        """Wait up to `timeout_s` for revision `since`; the revision reached and the matching events up to it.

        Raises IndexError when some of them are no longer held.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.revision >= since, timeout_s)
            return self.revision, self._mvcc.list_events_since(since, key, range_end)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` returns True, or the store closes; it is checked after each change and each `poke`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or ready())

    def poke(self) -> None:
        """Wake all waiting threads, so that they check again."""
        with self._changed:
            self._changed.notify_all()

    def build_header(self) -> pb.ResponseHeader:
        """The header of every answer."""
        return pb.ResponseHeader(revision=self.revision, member_id=1, raft_term=1)

    def wake(self) -> None:
        """End all waits, now and from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Close the journal."""
        with self._changed:
            self.wake()
            self._journal.close()

    def _write(self, operations: Sequence[pb.RequestOp]) -> list[pb.ResponseOp]:
        responses, events = self._mvcc.apply(operations, self._leases)
        if not events:
            return responses
        revision = self.revision + 1
        try:
            self._journal.append([_encode_events(revision, events)])
        except OSError:
            self._mvcc.undo(events)
            raise
        self._mvcc.publish(revision, events)
        self._changed.notify_all()
        self._compact()
        return responses

    def _compact(self) -> None:
        if self._journal.read_size() > self._compact_at:
            try:
                self._journal.replace(self._encode_snapshot())
            except OSError as error:
                # The change that came before is durable in the uncompacted journal.
                log.warning("journal_not_compacted", error=str(error))
                return
            # The limit grows with the live size, otherwise a large registry would be rewritten at every change.
            self._compact_at = COMPACT_BYTES + 2 * self._journal.read_size()

    def _encode_snapshot(self) -> Iterator[Record]:
        live = [pb.Event(kv=kv) for kv in self._mvcc.list_entries()]
        yield STATE, _encode_events(self.revision, live)[1]
        for lease_id, lease in self._leases.items():
            yield GRANT, pb.LeaseGrantRequest(TTL=lease.ttl_s, ID=lease_id).SerializeToString()

    def _rewrite_clean(self) -> None:
        """Replace the damaged journal by the remaining entries, so that the next start finds no damage."""
        for kv in self._mvcc.list_entries():
            if kv.lease and kv.lease not in self._leases:
                self._leases[kv.lease] = Lease(_LOST_LEASE_S, self._clock() + _LOST_LEASE_S)
        self._journal.replace(self._encode_snapshot())

    def _recover(self) -> None:
        for kind, body in self._journal.read():
            if kind in (EVENTS, STATE):
                record = pb.WatchResponse.FromString(body)
                if kind == STATE:
                    self._mvcc.load(record.header.revision, [event.kv for event in record.events])
                else:
                    self._mvcc.replay(record.header.revision, record.events)
            elif kind == GRANT:
                granted = pb.LeaseGrantRequest.FromString(body)
                # As after a change of leader, every lease starts again with its full time.
                self._leases[granted.ID] = Lease(granted.TTL, self._clock() + granted.TTL)
            else:
                self._leases.pop(pb.LeaseRevokeRequest.FromString(body).ID, None)


def _encode_events(revision: int, events: Sequence[pb.Event]) -> Record:
    message = pb.WatchResponse(header=pb.ResponseHeader(revision=revision), events=events)
    return EVENTS, message.SerializeToString()
