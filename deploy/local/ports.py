"""Ports of the loopback address: the servers of tests and demo listen nowhere else.

A server binds the port it was given seconds later. So that nobody has taken it by then, it lies outside the range from
which the kernel gives ports to outgoing connections and on request, and in a block that is this process's own.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_000, 65_535
_BLOCK = 50
_lock = threading.Lock()
_claims: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports that nobody listens on now; no other process of a test run gets one of them."""
    with _lock:
        return [next(_free) for _ in range(count)]


def free_port() -> int:
    """One port that nobody listens on now."""
    return free_ports(1)[0]


def is_open(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def kernels_range() -> range:
    """The ports that the kernel gives away by itself."""
    try:
        low, high = map(int, _KERNELS.read_text(encoding="ascii").split())
    except OSError:
        low, high = 32_768, 60_999  # Linux's own choice
    return range(low, high + 1)


def _outside() -> range:
    kernels = kernels_range()
    below, above = range(_LOWEST, kernels.start), range(kernels.stop, _HIGHEST + 1)
    found = max(below, above, key=len)
    return found if len(found) >= _BLOCK else range(_LOWEST, _HIGHEST + 1)


def _ports() -> Iterator[int]:
    places = _outside()
    blocks = range(places.start, places.stop - _BLOCK + 1, _BLOCK)
    for block in random.sample(blocks, len(blocks)):
        if _claim(block):
            yield from (port for port in range(block, block + _BLOCK) if _is_free(port))
    raise OSError("no port of this machine is free")


def _claim(block: int) -> bool:
    """Make the block this process's own, for as long as it lives: nobody else can bind its name."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0binlake-ports-{block}")
    except OSError:
        name.close()
        return False
    _claims.append(name)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _forget_blocks() -> None:
    global _free, _lock
    _free, _lock = _ports(), threading.Lock()


_free = _ports()
# A fork has blocks of its own.
os.register_at_fork(after_in_child=_forget_blocks)
