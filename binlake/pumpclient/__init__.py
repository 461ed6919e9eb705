"""The two clients of a pump: PumpClient writes P, C and R as TiDB does, PumpReader pulls complete transactions.

Both speak to our pump and to an original one; nothing is connected before the first call.
"""

from binlake.pumpclient.reader import Pulled, PumpInfo, PumpReader
from binlake.pumpclient.writer import PumpClient, PumpList

__all__ = ["Pulled", "PumpClient", "PumpInfo", "PumpList", "PumpReader"]
