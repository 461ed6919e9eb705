"""Replays a recorded TiDB capture into real pumps, and meanwhile serves the status port of its TiDB.

`schedule` knows the capture's binlogs, `replayer` writes them and leads PD's clock, `status` and `status_server` are
the capture's status port, `command` is `binlake capture`.
"""

from binlake.pump_service.replay.clock import ReplayClock
from binlake.pump_service.replay.replayer import Replayer, ReplayResult
from binlake.pump_service.replay.schedule import ReplaySchedule, Step
from binlake.pump_service.replay.status_server import StatusServer

__all__ = ["ReplayClock", "ReplayResult", "ReplaySchedule", "Replayer", "StatusServer", "Step"]
