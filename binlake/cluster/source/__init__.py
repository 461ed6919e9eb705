"""The source cluster: its clock, the outcomes of its transactions, and its DDL history (DESIGN 5).

For TiDB they come from PD and the status port; a capture, a feeder and a workload implement the same protocol.
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
from binlake.cluster.source.steps import DdlStep, ShownTable
from binlake.cluster.source.tidb import StatusPort, TidbSource

__all__ = [
    "Absent",
    "Committed",
    "DdlStep",
    "JobHistory",
    "Locked",
    "RolledBack",
    "ShownTable",
    "Source",
    "SqlHistory",
    "Status",
    "StatusPort",
    "TidbSource",
    "Unknown",
    "Unreachable",
    "read_status",
]
