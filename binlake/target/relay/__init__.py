"""Relay files: all that finishing a window takes, on disk before the first write to the target, and gone behind it.

What the drainer's relay log was for (tidb-binlog 5.9): source and lake may both be gone, the target and these files
suffice. The format is described in docs/reference/formats.md.
"""

from binlake.target.relay.log import RelayLog
from binlake.target.relay.reader import RelayWindow

__all__ = ["RelayLog", "RelayWindow"]
