"""The source cluster as three questions: the clock, what became of a transaction, and the DDL history (DESIGN 5).

TiDB answers them by PD and its status port; a capture, a feeder and a workload serve the same protocol.
"""

from binlake.cluster.source.protocol import JobHistory, Source
from binlake.cluster.source.sqlhistory import SqlHistory
from binlake.cluster.source.status import (
    Absent,
    Committed,
    Locked,
    RolledBack,
    Status,
    Unknown,
    Unreachable,
    read_status,
)
from binlake.cluster.source.steps import Shown, Step
from binlake.cluster.source.tidb import StatusPort, TidbSource

__all__ = [
    "Absent",
    "Committed",
    "JobHistory",
    "Locked",
    "RolledBack",
    "Shown",
    "Source",
    "SqlHistory",
    "Status",
    "StatusPort",
    "Step",
    "TidbSource",
    "Unknown",
    "Unreachable",
    "read_status",
]
