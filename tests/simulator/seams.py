"""Puts the product's modules into a simulated world, and takes them out again.

The replaced names are those that modules look up at run time: `threading`, `queue`, `time`, `os`, `fcntl`, `plyvel`,
`uuid`, futures and pools, and client and server of binlake.rpc. The product's code is neither copied nor changed.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import os
import queue
import random
import secrets
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

import binlake.cluster.placement
import binlake.cluster.pumpclient
import binlake.rpc
from simulator.disk import Disk, DiskOs, FileLocks
from simulator.ends import Channel, Server
from simulator.leveldb import Plyvel
from simulator.network import Network
from simulator.placement import SimulatedEtcd, SimulatedPd
from simulator.scheduler import Scheduler
from simulator.vthreads import Threading

_ROOMS = (
    "binlake.pump_service.pump.",
    "binlake.pump_service.pd.",
    "binlake.common.localfiles",
    "binlake.common.localfiles",
    "binlake.pump_service.waits",
    "binlake.cluster.pumpclient.",
    "binlake.cluster.placement.lock",
    "binlake.cluster.source.tikv",
    "binlake.cluster.source.regions",
)
_NOT = ("binlake.pump_service.pump.command", "binlake.pump_service.pd.command", "binlake.pump_service.pump.command")


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
    """Run the product inside the world while the context lasts."""
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
            (random, ids),
            (
                secrets,
                types.SimpleNamespace(randbits=ids.getrandbits, token_hex=lambda size: ids.randbytes(size).hex()),
            ),
            (concurrent.futures.Future, world.Future),
            (concurrent.futures.ThreadPoolExecutor, world.ThreadPoolExecutor),
            (binlake.rpc.Channel, channel),
            (binlake.rpc.RpcServer, server),
            (binlake.cluster.placement.EtcdClient, SimulatedEtcd),
            (binlake.cluster.placement.PdClient, SimulatedPd),
        )
    }
    undo: list[tuple[Any, str, Any]] = []
    clocks = {time.monotonic: _time_of(scheduler).monotonic}
    for module in _modules():
        for function in _methods(module):
            defaults = tuple(clocks.get(value, value) if callable(value) else value for value in function.__defaults__)
            if defaults != function.__defaults__:
                undo.append((function, "__defaults__", function.__defaults__))
                function.__defaults__ = defaults
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


def _methods(module: types.ModuleType) -> list[Any]:
    """Functions with a default value that was looked up when their module was loaded."""
    kinds = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    found = [one for kind in kinds for one in vars(kind).values() if isinstance(one, types.FunctionType)]
    return [one for one in found if one.__defaults__]


def _modules() -> list[types.ModuleType]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(_ROOMS) and not name.startswith(_NOT) and isinstance(module, types.ModuleType)
    ]
