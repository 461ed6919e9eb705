"""Net change: what a run of row changes leaves of each key, and why its order does not matter any more."""

from binlake.changes.net.event import RowEvent, row_key
from binlake.changes.net.net import NetChange, net_changes

__all__ = ["NetChange", "RowEvent", "net_changes", "row_key"]
