"""The source cluster: its clock, the outcomes of its transactions, and its DDL history (DESIGN 5).

For TiDB they come from PD and the status port; a capture, a feeder and a workload implement the same protocol.
"""

from binlake.cluster.source.ddlhistory import DdlStep, ShownTable, SqlHistory
from binlake.cluster.source.protocol import (
    Absent,
    Committed,
    JobHistory,
    Locked,
    RolledBack,
    Source,
    Status,
    Unknown,
    Unreachable,
    read_status,
)
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
