"""The names of faults: one vocabulary for the simulator, the soak of real processes and the models.

A fault has the same name wherever it is injected. The simulator has a function for each kind of the pump cluster; tests
that inject the same one into real processes count it under this name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.world import World


class Kind(StrEnum):
    """A kind of fault."""

    # processes and machines
    KILL = "kill"  # kill -9
    KILL_TAIL = "kill, with something behind the last acked record"
    POWER = "power failure"
    KILL_THEN_POWER = "kill, restart, power failure"
    PAUSE = "pause"  # a clean stop
    PAUSE_AT_START = "pause, while the index is built"
    FREEZE = "freeze"  # SIGSTOP
    PD_DOWN = "pd down"
    JOIN = "join"
    LEAVE = "leave"
    TWIN_SAME_ADDRESS = "second process, same address"
    TWIN_OTHER_ADDRESS = "second process, other address"
    # disks
    FULL_DISK = "full disk"
    PD_FULL_DISK = "full disk of pd"
    PD_FULL_CLOCK_BACK = "full disk of pd, clock set back"
    SLOW_SYNC = "slow sync"
    FAILED_SYNC = "failed sync"
    PD_FAILED_SYNC = "failed sync of pd"
    PD_FAILED_SYNC_THEN_POWER = "failed sync of pd, restart, power failure"
    REPLACED_DISK = "replaced disk"
    FLIPPED_BIT = "flipped bit"
    PD_FLIPPED_BIT = "flipped bit of pd"
    # links, clocks, sources, consumers
    PARTITION = "partition"
    DELAYS = "delays"
    CLOCK = "clock"  # PD's clock is stepped
    CLOCK_HOURS_ON = "clock, beyond every age"
    SOURCE_AWAY = "source away"
    REGIONS_MOVED = "regions moved"
    SOURCE_COLLECTS = "source collects"
    CONSUMER_RESTS = "consumer rests"
    # at a target (tests/model)
    APPLY_DIES = "apply dies"
    CONNECTIONS_KILLED = "connections killed"
    LATE_OWNER = "late owner"  # a process is suspended, another one takes over, and the first one resumes
    SEAL_CHANGED = "seal changed"
    FAIL_OVER = "fail-over"  # to an older copy
    ROW_LOST = "row lost"
    CHECKPOINT_SET_BACK = "checkpoint set back"
    TABLE_REBUILT = "table rebuilt"


@dataclass(frozen=True)
class Fault:
    """A kind, and how the simulator injects it: `act(world, random)`, which may take time."""

    kind: Kind
    act: Callable[[World, Random], None]

    def __call__(self, world: World, random: Random) -> None:
        self.act(world, random)


def fault(kind: Kind) -> Callable[[Callable[[World, Random], None]], Fault]:
    """Decorator: the function injects this kind of fault into the simulator."""
    return lambda act: Fault(kind, act)
