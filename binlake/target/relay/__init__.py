"""Relay files: everything needed to finish a window, on disk before the first write to the target.

They are deleted after the window. They correspond to the drainer's relay log (tidb-binlog 5.9): if source and lake are
both lost, the target and these files suffice. The format is described in docs/reference/formats.md.
"""

from binlake.target.relay.log import RelayLog
from binlake.target.relay.records import RelayWindow

__all__ = ["RelayLog", "RelayWindow"]
