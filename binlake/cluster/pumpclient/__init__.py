"""The two clients of a pump: PumpClient writes binlogs as TiDB does, PumpReader pulls complete transactions.

Both work with a Binlake pump and with an original one; they connect at the first call.
"""

from binlake.cluster.pumpclient.pumps import PumpList, PumpWatch
from binlake.cluster.pumpclient.reader import Pulled, PumpInfo, PumpReader, RangeSize
from binlake.cluster.pumpclient.writer import ClientOptions, ClientStats, PumpClient, WriteTimes

__all__ = [
    "ClientOptions",
    "ClientStats",
    "Pulled",
    "PumpClient",
    "PumpInfo",
    "PumpList",
    "PumpReader",
    "PumpWatch",
    "RangeSize",
    "WriteTimes",
]
