"""Ports on the loopback address, for the servers of tests and demos.

A server binds its port seconds after the port was chosen. So that no other process takes the port meanwhile, it lies
outside the range from which the kernel assigns ports, and in a block reserved for this process.
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
    """`count` different TCP ports on which no server listens; no other process of a test run gets one of them."""
    with _lock:
        return [next(_free) for _ in range(count)]


def free_port() -> int:
    """One port on which no server listens."""
    return free_ports(1)[0]


def is_open(port: int) -> bool:
    """Whether a server accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def read_kernel_range() -> range:
    """The ports that the kernel assigns itself."""
    try:
        low, high = map(int, _KERNELS.read_text(encoding="ascii").split())
    except OSError:
        low, high = 32_768, 60_999  # Linux's default
    return range(low, high + 1)


def _choose_range() -> range:
    kernels = read_kernel_range()
    below, above = range(_LOWEST, kernels.start), range(kernels.stop, _HIGHEST + 1)
    larger = max(below, above, key=len)
    return larger if len(larger) >= _BLOCK else range(_LOWEST, _HIGHEST + 1)


def _find_ports() -> Iterator[int]:
    places = _choose_range()
    blocks = range(places.start, places.stop - _BLOCK + 1, _BLOCK)
    for block in random.sample(blocks, len(blocks)):
        if _claim(block):
            yield from (port for port in range(block, block + _BLOCK) if _is_free(port))
    raise OSError("no port of this machine is free")


def _claim(block: int) -> bool:
    """Reserve the block for this process while it lives, by binding a socket name that only one process can bind."""
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
    _free, _lock = _find_ports(), threading.Lock()


_free = _find_ports()
# A forked process must reserve its own blocks.
os.register_at_fork(after_in_child=_forget_blocks)
