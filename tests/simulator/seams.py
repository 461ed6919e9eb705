"""Puts the product's modules into a simulated world, and takes them out again.

The seams are names that modules look up when they run: `threading`, `queue`, `time`, `os`, `fcntl`, `plyvel`, `uuid`,
futures and pools, and the two ends of binlake.rpc. The product's code is not copied and does not know.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import os
import queue
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import plyvel
import structlog
from simulator.disk import Disk, DiskOs, FileLocks
from simulator.leveldb import Plyvel
from simulator.network import Channel, Network, Server
from simulator.scheduler import Scheduler
from simulator.vthreads import Threading

import binlake.pumpclient
import binlake.rpc
import pump_service.pd.kvstore
import pump_service.pd.oracle
import pump_service.pump.server

_ROOMS = ("pump_service.pump.", "pump_service.pd.", "pump_service.durable", "pump_service.slices", "binlake.pumpclient.")
_NOT = ("pump_service.pump.command", "pump_service.pd.command", "pump_service.pump.processes")


def _time_of(scheduler: Scheduler) -> Any:
    def now() -> float:
        return scheduler.now

    return types.SimpleNamespace(
        monotonic=now, perf_counter=now, time=now, time_ns=lambda: int(scheduler.now * 1e9), sleep=scheduler.sleep,
        thread_time=lambda: 0.0, monotonic_ns=lambda: int(scheduler.now * 1e9), strftime=time.strftime,
    )  # fmt: skip


@contextmanager
def simulated(scheduler: Scheduler, world: Threading, network: Network, disk_of: Callable[[Path], Disk | None],
              ids: Random) -> Iterator[DiskOs]:  # fmt: skip
    """The product inside the world, for as long as the context lasts."""
    disk_os = DiskOs(scheduler, disk_of)
    channel = type("SimulatedChannel", (Channel,), {"network": network})
    server = type("SimulatedServer", (Server,), {"network": network})
    threads = types.SimpleNamespace(
        Lock=world.Lock, RLock=world.RLock, Condition=world.Condition, Event=world.Event, Thread=world.Thread,
        current_thread=lambda: types.SimpleNamespace(name="simulated"), excepthook=None,
    )  # fmt: skip
    exchanged: dict[int, tuple[Any, Any]] = {
        id(real): (real, simulated)
        for real, simulated in (
            (threading, threads),
            (queue, types.SimpleNamespace(SimpleQueue=world.SimpleQueue, Empty=queue.Empty)),
            (time, _time_of(scheduler)),
            (os, disk_os),
            (fcntl, FileLocks(scheduler)),
            (plyvel, Plyvel(scheduler, disk_of)),
            (uuid, types.SimpleNamespace(uuid4=lambda: uuid.UUID(int=ids.getrandbits(128)))),
            (concurrent.futures.Future, world.Future),
            (concurrent.futures.ThreadPoolExecutor, world.ThreadPoolExecutor),
            (binlake.rpc.Channel, channel),
            (binlake.rpc.RpcServer, server),
        )
    }
    undo: list[tuple[Any, str, Any]] = []
    for module in _modules():
        for name, value in list(vars(module).items()):
            if id(value) in exchanged:
                undo.append((module, name, value))
                setattr(module, name, exchanged[id(value)][1])
    configuration = structlog.get_config()
    try:
        yield disk_os
    finally:
        structlog.configure(**configuration)
        for module, name, value in undo:
            setattr(module, name, value)


def _modules() -> list[types.ModuleType]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(_ROOMS) and not name.startswith(_NOT) and isinstance(module, types.ModuleType)
    ]
