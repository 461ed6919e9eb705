"""The embedded placement driver: PD's GetMembers and Tso and an etcd v3 subset on one port, durable on disk."""

from binlake.pump_service.pd.server import PlacementDriver

__all__ = ["PlacementDriver"]
