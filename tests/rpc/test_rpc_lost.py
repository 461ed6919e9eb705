"""A connection is lost while many threads use it: each call ends as an RpcError, and no thread waits for ever."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from rpc_helpers import ECHO, serving, until

from binlake.rpc import Channel, RpcError, frames
from binlake.rpc.frames import Setting
from binlake.rpc.sockets import Wire

WIDE = frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, frames.U31)]) + frames.encode_window_update(
    0, frames.U31 - 65_535
)


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound, f"127.0.0.1:{bound.getsockname()[1]}"


def test_closed_wire_has_nothing_to_send_and_wakes_all_waiters() -> None:
    with listening() as (_, address):
        wire = Wire(address, None, 60)
        wire.write(bytes(30 << 20))
        assert wire.unsent
        wire.close()
        assert not wire.unsent
        begun = time.monotonic()
        wire.wait(60)
        wire.wait_writable(60)
        assert time.monotonic() - begun < 30


def test_closing_a_wire_wakes_a_thread_that_begins_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # The number of a closed socket is reused: a thread that polls it would wait for another connection.
    others: list[socket.socket] = []

    class Late:
        """poll(2), with another thread that closes the wire between its two steps."""

        def __init__(self) -> None:
            self._poll = select.poll()

        def register(self, bound: socket.socket, events: int) -> None:
            self._poll.register(bound, events)
            closing = threading.Thread(target=wire.close)
            closing.start()
            closing.join()
            others.extend(socket.socketpair())

        def poll(self, timeout_ms: int) -> object:
            return self._poll.poll(timeout_ms)

    own = SimpleNamespace(poll=Late, POLLIN=select.POLLIN, POLLOUT=select.POLLOUT)
    monkeypatch.setattr("binlake.rpc.sockets.select", own)
    with listening() as (_, address):
        wire = Wire(address, None, 60)
        begun = time.monotonic()
        wire.wait(60)
        assert time.monotonic() - begun < 30
        assert wire._socket.fileno() == -1
    for other in others:
        other.close()


def test_thread_that_waits_during_a_check_of_the_connection_is_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The check ends without reading on: without a wake-up, the waiting thread would wait for ever.
    with serving() as (_, address), Channel(address) as channel:
        assert channel.call(ECHO, b"first", 60) == b"first"
        link = channel._link
        assert link is not None
        answers: list[bytes] = []
        caller = threading.Thread(target=lambda: answers.append(channel.call(ECHO, b"mine", 60)))

        def look() -> None:
            monkeypatch.undo()
            caller.start()
            until(lambda: bool(link._waiting), "it follows who reads")
            time.sleep(0.2)

        monkeypatch.setattr(link, "_read_now", look)
        begun = time.monotonic()
        assert link.is_usable()
        caller.join()
        assert (answers, time.monotonic() - begun < 30) == ([b"mine"], True)


def test_server_that_dies_during_a_large_write_ends_all_calls_with_rpc_errors() -> None:
    outcomes: list[str] = []

    def call(channel: Channel, size: int) -> None:
        try:
            channel.call("/a/b", bytes(size), 120)
            outcomes.append("ok")
        except RpcError:
            outcomes.append("RpcError")

    def die(bound: socket.socket, begun: threading.Event) -> None:
        peer, _ = bound.accept()
        peer.sendall(WIDE)
        begun.wait(60)
        peer.recv(1000)
        # Before the connection of the peer ends, so that a late call does not wait for a server that accepts nothing.
        bound.close()
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
                thread.join(180)
    assert outcomes == ["RpcError"] * 27
