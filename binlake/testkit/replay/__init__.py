"""Replays a recorded TiDB capture into real pumps, and meanwhile serves the status port of its TiDB.

`schedule` knows the capture's binlogs, `replayer` writes them and leads PD's clock, `recorded` is the capture's status
port, `command` is `binlake capture`.
"""

from binlake.pump_service.statusport import StatusServer
from binlake.testkit.replay.replayer import ReplayClock, Replayer, ReplayResult, ReplaySchedule, ReplayStep

__all__ = ["ReplayClock", "ReplayResult", "ReplaySchedule", "ReplayStep", "Replayer", "StatusServer"]
