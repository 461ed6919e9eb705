"""Clients of the placement driver: timestamps, the registry of pumps and consumers in its etcd, locks."""

from binlake.cluster.node import NodeStatus
from binlake.cluster.placement.etcd import EtcdClient
from binlake.cluster.placement.lock import EtcdClaim, EtcdLock
from binlake.cluster.placement.pd import ClockClient, PdClient, Placement, is_pd_reachable, open_placement
from binlake.cluster.placement.registry import NodeRegistry, RegistryEntry

__all__ = [
    "ClockClient",
    "EtcdClaim",
    "EtcdClient",
    "EtcdLock",
    "NodeRegistry",
    "NodeStatus",
    "PdClient",
    "Placement",
    "RegistryEntry",
    "is_pd_reachable",
    "open_placement",
]
