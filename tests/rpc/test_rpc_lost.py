"""A connection that breaks while many threads use it: each call ends as an RpcError, and nobody waits on it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

from binlake.rpc import Channel, RpcError, frames
from binlake.rpc.frames import Setting
from binlake.rpc.wire import Wire

WIDE = frames.settings([(Setting.INITIAL_WINDOW_SIZE, frames.U31)]) + frames.window_update(0, frames.U31 - 65_535)


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound, f"127.0.0.1:{bound.getsockname()[1]}"


def test_a_closed_wire_has_nothing_to_send_and_keeps_nobody_waiting() -> None:
    with listening() as (_, address):
        wire = Wire(address, None, 5)
        wire.write(bytes(30 << 20))
        assert wire.unsent
        wire.close()
        assert not wire.unsent
        begun = time.monotonic()
        wire.wait(10)
        wire.wait_writable(10)
        assert time.monotonic() - begun < 5


def test_a_server_that_dies_under_a_large_write_ends_every_call_as_an_rpc_error() -> None:
    outcomes: list[str] = []

    def call(channel: Channel, size: int) -> None:
        try:
            channel.call("/a/b", bytes(size), 5)
            outcomes.append("ok")
        except RpcError:
            outcomes.append("RpcError")

    def die(bound: socket.socket, begun: threading.Event) -> None:
        peer, _ = bound.accept()
        peer.sendall(WIDE)
        begun.wait(10)
        peer.recv(1000)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

    for _ in range(3):
        with listening() as (bound, address), Channel(address) as channel:
            begun = threading.Event()
            threads = [threading.Thread(target=die, args=(bound, begun))]
            threads += [threading.Thread(target=call, args=(channel, 1)) for _ in range(8)]
            threads.append(threading.Thread(target=call, args=(channel, 30 << 20)))
            for thread in threads:
                thread.start()
            begun.set()
            for thread in threads:
                thread.join(20)
    assert outcomes == ["RpcError"] * 27
