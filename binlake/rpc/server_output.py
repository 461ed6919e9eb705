"""The output of a server connection: one write per turn of the loop, and no more than the peer reads."""

from __future__ import annotations

import asyncio

from binlake.rpc.call import Call
from binlake.rpc.connection import Connection
from binlake.rpc.host import Host

FOREVER = float("inf")


class ServerOutput(Connection):
    """The output side of a connection; belongs to the server's loop, which pauses and resumes it."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(host.limits)
        self._host = host
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._short = False  # a stream is in `_blocked` because this connection had no room
        self._paused = False
        self._stalled_since = FOREVER
        self._draining = False

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read, so that answers to it cannot pile up."""
        self._paused = True
        self._stalled_since = self._host.clock()
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue, since the peer reads again."""
        self._paused = False
        self._stalled_since = FOREVER
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()
            self.resume()

    def close(self) -> None:
        """Close after all output is written."""
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        """Queue bytes for the next write of this connection."""
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    _write = write

    def _flush(self) -> None:
        self._flushing = False
        if self._out and self._transport is not None:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out, self._out_bytes = [], 0
            if not self._transport.is_closing():
                self._transport.write(data)
        if self._short and not self._paused:
            # A transport that accepted everything has not paused us, so it will not call resume_writing.
            self._short = False
            self._loop.call_soon(self._continue_output)

    def _continue_output(self) -> None:
        if not self.closed and not self._paused:
            self.resume()

    def _measure_room(self) -> int:
        if self._paused or self._transport is None:
            return 0
        if self._out_bytes >= self.limits.queue_bytes >> 1:
            self._flush()
        room = self.limits.queue_bytes - self._transport.get_write_buffer_size() - self._out_bytes
        self._short = room <= 0
        return room

    def claim_window(self, call: Call, size: int) -> bool:
        """Whether a whole answer with `size` bytes of DATA may be sent at once; if so, the stream is closed."""
        if size > self.send_window or size > call.window or self._paused or self._draining or call.started:
            return False
        self.send_window -= size
        call.local_closed = True
        self.streams.pop(call.id, None)
        return True
