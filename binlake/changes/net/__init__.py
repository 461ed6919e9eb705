"""Net change: the result of a run of row changes for each key, and the proof that its order no longer matters."""

from binlake.changes.net.net import NetChange, RowEvent, compute_net_changes, encode_row_key

__all__ = ["NetChange", "RowEvent", "compute_net_changes", "encode_row_key"]
