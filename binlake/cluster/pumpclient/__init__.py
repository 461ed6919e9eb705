"""The two clients of a pump: PumpClient writes binlogs as TiDB does, PumpReader pulls complete transactions.

Both speak to a Binlake pump and to an original one; nothing is connected before the first call.
"""

from binlake.pumpclient.follow import PumpList, PumpWatch
from binlake.pumpclient.pumps import PumpStatus
from binlake.pumpclient.reader import Pulled, PumpInfo, PumpReader
from binlake.pumpclient.writer import ClientOptions, ClientStats, PumpClient, WriteTimes

__all__ = [
    "ClientOptions",
    "ClientStats",
    "Pulled",
    "PumpClient",
    "PumpInfo",
    "PumpList",
    "PumpReader",
    "PumpStatus",
    "PumpWatch",
    "WriteTimes",
]
