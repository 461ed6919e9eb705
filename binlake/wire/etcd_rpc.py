"""Method paths of etcd's v3 services with their message types: one table for Binlake's client and server.

Written by hand, because Binlake's messages are in a separate package (see `proto/binlake/wire/etcd.proto`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from binlake.wire import etcd_pb2 as pb


@dataclass(frozen=True)
class Method:
    """One RPC: `service` and `name` make the path; `request` and `response` are message classes."""

    service: str
    name: str
    request: Any
    response: Any
    stream: bool = False

    @property
    def path(self) -> str:
        """The HTTP/2 path of the RPC."""
        return f"/{self.service}/{self.name}"


RANGE = Method("etcdserverpb.KV", "Range", pb.RangeRequest, pb.RangeResponse)
PUT = Method("etcdserverpb.KV", "Put", pb.PutRequest, pb.PutResponse)
DELETE_RANGE = Method("etcdserverpb.KV", "DeleteRange", pb.DeleteRangeRequest, pb.DeleteRangeResponse)
TXN = Method("etcdserverpb.KV", "Txn", pb.TxnRequest, pb.TxnResponse)
WATCH = Method("etcdserverpb.Watch", "Watch", pb.WatchRequest, pb.WatchResponse, stream=True)
LEASE_GRANT = Method("etcdserverpb.Lease", "LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE = Method("etcdserverpb.Lease", "LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
LEASE_KEEP_ALIVE = Method(
    "etcdserverpb.Lease", "LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse, stream=True
)
LEASE_TIME_TO_LIVE = Method(
    "etcdserverpb.Lease", "LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse
)
