"""Replays a recorded TiDB capture into real pumps, and meanwhile serves the status port of its TiDB.

`replayer` writes the capture's binlogs and leads PD's clock, `recorded` is its TiDB, `command` is `binlake capture`.
"""

from binlake.pump_service.statusport import StatusServer
from binlake.testkit.replay.replayer import ReplayClock, Replayer, ReplayResult, ReplaySchedule, ReplayStep

__all__ = ["ReplayClock", "ReplayResult", "ReplaySchedule", "ReplayStep", "Replayer", "StatusServer"]
