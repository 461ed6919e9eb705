"""Waiting output continues, however the transport accepted the output before it."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from rpc_helpers import TestServer, request_block

from binlake.rpc import Channel, Limits, frames
from binlake.rpc.frames import Setting
from binlake.rpc.server_connection import ServerConnection

QUEUE = Limits().queue_bytes


class Loop:
    """Runs callbacks in the next turn."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, action: Callable[[], None]) -> None:
        self._soon.append(action)

    def turn(self) -> bool:
        now, self._soon = self._soon, []
        for action in now:
            action()
        return bool(now)


class Pipe:
    """A transport that pauses as in asyncio: above the high-water mark, until it is below a quarter of it."""

    def __init__(self) -> None:
        self.protocol: ServerConnection | None = None
        self.written = bytearray()
        self._waits = self._high = 0
        self._paused = False

    def get_extra_info(self, name: str) -> None:
        """There is no information about the other side."""

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self._waits

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def write(self, data: bytes) -> None:
        assert self.protocol is not None
        self.written += data
        self._waits += len(data)
        if self._waits > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def drain(self, size: int) -> None:
        assert self.protocol is not None
        self._waits = max(0, self._waits - size)
        if self._paused and self._waits <= self._high >> 2:
            self._paused = False
            self.protocol.resume_writing()


@pytest.mark.parametrize("first", [QUEUE // 8, QUEUE // 2 - 50, QUEUE // 2 + 50, 600_000, QUEUE - 200, QUEUE])
def test_stream_continues_if_the_socket_accepted_all_before_the_pause(first: int) -> None:
    host = SimpleNamespace(
        limits=Limits(), clock=lambda: 0.0, add_connection=lambda _: None, methods={"/a/b": lambda *_: None}
    )
    loop, pipe = Loop(), Pipe()
    connection = ServerConnection(host, loop)  # type: ignore[arg-type]
    pipe.protocol = connection
    connection.connection_made(pipe)  # type: ignore[arg-type]
    wide = frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, frames.U31)]) + frames.encode_window_update(0, 1 << 30)
    request = frames.encode_headers(1, request_block("/a/b"), end_stream=False)
    request += frames.encode_frame(frames.DATA, frames.END_STREAM, 1, bytes(5))
    connection.data_received(frames.PREFACE + wide + request)
    call = connection.streams[1]
    call.send(bytes(first))  # type: ignore[attr-defined]
    loop.turn()
    call.send(bytes(5 * QUEUE))  # type: ignore[attr-defined]
    pipe.drain(QUEUE * 2)  # between two turns, before the flush
    while loop.turn() or pipe.get_write_buffer_size():
        pipe.drain(QUEUE * 2)
    assert call.queued == 0
    assert len(pipe.written) > first + 5 * QUEUE


def test_streams_of_many_sizes_finish_over_a_small_socket() -> None:
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        server, path = TestServer(), Path(folder) / "s"
        server.add_streaming("/t.T/Sizes", lambda message, sink: [sink.send(bytes(int(n))) for n in message.split()])
        server.listen_unix(path)
        for bound, _, _ in server._sockets:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        server.start()
        try:
            for _ in range(40):
                sizes = [chance.choice([262_139, 600_000, 1_040_000, 3_000_000]) + chance.randrange(-50_000, 50_000)]
                sizes += [chance.randrange(200_000, 2_000_000) for _ in range(chance.randrange(5))]
                message = " ".join(map(str, sizes)).encode()
                with Channel(f"unix:{path}") as channel:
                    found = [len(one) for one in channel.open_stream("/t.T/Sizes", message, idle_timeout_s=60)]
                assert found == sizes
        finally:
            server.stop(0.2)
