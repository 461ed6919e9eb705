"""Reader of recorded TiDB captures: a folder of binlogs, DDL jobs, states and decoded rows; any file may be NAME.gz."""

from binlake.capture.reader import Capture, StateAt

__all__ = ["Capture", "StateAt"]
