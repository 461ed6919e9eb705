"""Clients of the placement driver: timestamps, the registry of pumps and consumers in its etcd, locks."""

from binlake.placement.answering import pd_answers
from binlake.placement.claim import EtcdClaim
from binlake.placement.clock import ClockClient
from binlake.placement.etcd import EtcdClient
from binlake.placement.lock import EtcdLock
from binlake.placement.opening import Placement, open_placement
from binlake.placement.pd import PdClient
from binlake.placement.registry import Entry, NodeStatus, Registry

__all__ = [
    "ClockClient",
    "Entry",
    "EtcdClaim",
    "EtcdClient",
    "EtcdLock",
    "NodeStatus",
    "PdClient",
    "Placement",
    "Registry",
    "open_placement",
    "pd_answers",
]
