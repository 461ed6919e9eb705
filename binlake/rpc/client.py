"""Channel: gRPC calls from plain threads, without an event loop or a thread of its own.

A thread that waits for an answer reads the socket for all calls of the channel; when it has its answer, another waiting
thread takes over. So a single caller needs no switch between threads, many callers share one connection, and an unused
channel has only a socket, so it may be created before a fork.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from binlake.common.spool import MessagePiece
from binlake.rpc import headers, messages
from binlake.rpc.client_connection import ClientConnection, Exchange, encode_request_head, read_unary_message
from binlake.rpc.frames import ConnectionFault
from binlake.rpc.limits import Limits
from binlake.rpc.messages import RpcError, Status
from binlake.rpc.sockets import Tls, Wire

_LIMITS = Limits(stream_window=4 << 20, frame_bytes=256 << 10, connection_window=64 << 20)
_CONNECT_S = 10.0
_WRITE_LOOK_S = 0.05
_TRIES = 3  # for a call that the server has certainly not started


Pieces = tuple[MessagePiece, ...]
"""A message in pieces."""


class Channel:
    """Calls to one server over one connection, which is opened at the first call, and again after it was lost.

    `address`: HOST:PORT or unix:PATH. `gzip`: compress, and ask for compressed answers. Thread-safe; close() ends all.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: Tls | None = None,
        gzip: bool = False,
        connect_timeout_s: float = _CONNECT_S,
        limits: Limits = _LIMITS,
    ) -> None:
        self.address = address
        self._tls = tls
        self._gzip = gzip
        self._connect_timeout_s = connect_timeout_s
        self._limits = limits
        self._heads: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._closed = False

    def call(self, method: str, message: bytes | Pieces, timeout_s: float | None = None) -> bytes:
        """Call the unary `/package.Service/Method`; returns the answer. Raises RpcError.

        A large `message` may be given in pieces, which are not copied.
        """
        return self.start(method, message, timeout_s).await_result()

    def start(self, method: str, message: bytes | Pieces, timeout_s: float | None = None) -> PendingCall:
        """Send a unary call without waiting, so that many may be pending. Raises RpcError if it cannot be sent."""
        return PendingCall(self, method, message, timeout_s)

    def open_stream(
        self,
        method: str,
        message: bytes,
        *,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> MessageStream:
        """Call a server-streaming method. `idle_timeout_s`: the longest time without any bytes, even of a part of a
        message. `metadata`: names in lower case."""
        link, exchange = self.begin(method, message, timeout_s, holding=True, metadata=metadata)
        return MessageStream(link, exchange, timeout_s, idle_timeout_s)

    def begin(
        self,
        method: str,
        message: bytes | Pieces,
        timeout_s: float | None,
        *,
        holding: bool,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> tuple[Link, Exchange]:
        """Send a request on the current connection, or a new one."""
        head = self._heads.get(method)
        if head is None:
            scheme = "https" if self._tls is not None else "http"
            authority = "localhost" if self.address.startswith("unix:") else self.address
            head = self._heads[method] = encode_request_head(method, authority, scheme, gzip=self._gzip)
        if metadata:
            head += headers.encode([(name.encode(), value.encode()) for name, value in metadata])
        link = self._connect_if_needed()
        if isinstance(message, tuple) and not self._gzip:
            body = messages.frame_pieces(message)
        else:
            whole = message if isinstance(message, bytes) else b"".join([piece[:] for piece in message])
            body = [messages.encode_message(whole, gzip=self._gzip)]
        return link, link.begin(head, body, timeout_s, holding=holding)

    def close(self) -> None:
        """End all calls and the connection; idempotent."""
        with self._lock:
            self._closed, link, self._link = True, self._link, None
        if link is not None:
            link.lose(RpcError(Status.CANCELLED, "the channel was closed", where={"addr": self.address}))

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect_if_needed(self) -> Link:
        with self._lock:
            if self._closed:
                raise RpcError(Status.CANCELLED, "the channel was closed", where={"addr": self.address})
            if self._link is None or not self._link.is_usable():
                wire = Wire(self.address, self._tls, self._connect_timeout_s)
                self._link = Link(wire, ClientConnection(self._limits, self.address))
            return self._link


class PendingCall:
    """A pending unary call; for one thread."""

    def __init__(self, channel: Channel, method: str, message: bytes | Pieces, timeout_s: float | None) -> None:
        self._channel = channel
        self._method = method
        self._message = message
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        self._link, self._exchange = self._send()

    def await_result(self) -> bytes:
        """Wait for the answer. Raises RpcError."""
        for _ in range(_TRIES):
            exchange = self._exchange
            if not self._link.wait(exchange, self._until):
                self._link.cancel(exchange, RpcError(Status.DEADLINE_EXCEEDED, "no answer in time"))
            if exchange.error is None:
                return read_unary_message(exchange)
            if not exchange.untouched:
                raise exchange.error
            self._link, self._exchange = self._send()
        raise RpcError(Status.UNAVAILABLE, "the server is going away", where={"addr": self._channel.address})

    def _send(self) -> tuple[Link, Exchange]:
        return self._channel.begin(self._method, self._message, _compute_seconds_left(self._until), holding=False)


class MessageStream:
    """The messages of a streaming call, in the order they were sent; for one thread.

    Flow control stops the server while they are not read. Ends with the call; raises RpcError if that fails.
    """

    def __init__(self, link: Link, exchange: Exchange, timeout_s: float | None, idle_timeout_s: float | None) -> None:
        self._link = link
        self._exchange = exchange
        self._idle_timeout_s = idle_timeout_s
        self._until = None if timeout_s is None else time.monotonic() + timeout_s

    def receive_batches(self) -> Iterator[list[bytes]]:
        """Lists of received messages, at least one each time; faster than one by one."""
        exchange, link = self._exchange, self._link
        while True:
            # A part of a message counts as activity: a large message may take long.
            until, idle = self._compute_next_limit()
            if batch := self._take():
                yield batch
            elif exchange.done and not exchange.parts:
                if exchange.error is not None:
                    raise exchange.error
                return
            elif not link.wait(exchange, until):
                text = f"nothing was received for {self._idle_timeout_s:g} s" if idle else "the stream took too long"
                link.cancel(exchange, RpcError(Status.DEADLINE_EXCEEDED, text))

    def _compute_next_limit(self) -> tuple[float | None, bool]:
        """How long to wait for the next byte, and whether that limit is the idle timeout."""
        if self._idle_timeout_s is None:
            return self._until, False
        limit = time.monotonic() + self._idle_timeout_s
        return (limit, True) if self._until is None or limit < self._until else (self._until, False)

    def __iter__(self) -> Iterator[bytes]:
        for batch in self.receive_batches():
            yield from batch

    def cancel(self) -> None:
        """Cancel the call; idempotent."""
        self._link.cancel(self._exchange, RpcError(Status.CANCELLED, "the caller cancelled"))

    def __enter__(self) -> MessageStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def _take(self) -> list[bytes]:
        parts = self._link.take(self._exchange)
        if not parts:
            return []
        try:
            return self._exchange.splitter.feed(parts)
        except RpcError as error:
            self._link.cancel(self._exchange, error)
            raise


class Link:
    """A connection with its wire: `_lock` guards both; the thread that waits on the socket holds `_reading`."""

    def __init__(self, wire: Wire, connection: ClientConnection) -> None:
        self._wire = wire
        self._connection = connection
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._waiting: dict[int, threading.Event] = {}

    def is_usable(self) -> bool:
        """Whether new calls can use it; also checks whether the server has left while no thread was reading."""
        if not self._connection.streams and self._reading.acquire(blocking=False):
            try:
                self._read_now()
            finally:
                self._reading.release()
                # A thread that began a call in the meantime saw this thread reading, and waits: hand over to it.
                self._hand_over()
        return not self._connection.gone

    def begin(self, head: bytes, body: Sequence[MessagePiece], timeout_s: float | None, *, holding: bool) -> Exchange:
        """Send a request, whose framed message is `body`. Raises RpcError."""
        with self._lock:
            exchange = self._connection.begin(head, body[0], timeout_s, holding=holding, rest=body[1:])
            self._flush()
        while self._wire.unsent and self._reading.locked():
            # The reading thread does not know that there is something to write.
            self._wire.wait_writable(_WRITE_LOOK_S)
            self._push()
        return exchange

    def cancel(self, exchange: Exchange, error: RpcError) -> None:
        """Cancel a call."""
        with self._lock:
            if not exchange.done:
                self._connection.cancel(exchange, error)
                self._flush()

    def take(self, exchange: Exchange) -> list[bytes]:
        """The parts of a stream that came since the last call."""
        with self._lock:
            parts, exchange.parts = exchange.parts, []
            if parts:
                self._connection.grant_more(exchange)
                self._flush()
        return parts

    def lose(self, error: RpcError) -> None:
        """Close the connection; all calls end with `error`."""
        with self._lock:
            self._lose(error)

    def wait(self, exchange: Exchange, until: float | None) -> bool:
        """Wait until `exchange` is ready, and read for all threads if no other does; False if `until` has passed."""
        while not exchange.ready:
            left = _compute_seconds_left(until)
            if left is not None and left <= 0:
                return False
            try:
                self._read_or_follow(exchange, until)
            finally:
                # A thread that was woken to read but need not wait any more hands over: while any waits, one must read.
                self._hand_over()
        return True

    def _read_or_follow(self, exchange: Exchange, until: float | None) -> None:
        if not self._reading.acquire(blocking=False):
            self._follow(exchange, _compute_seconds_left(until))
            return
        try:
            self._read(exchange, until)
        finally:
            self._reading.release()

    def _read(self, exchange: Exchange, until: float | None) -> None:
        while not exchange.ready:
            left = _compute_seconds_left(until)
            if left is not None and left <= 0:
                return
            self._wire.wait(left)
            self._read_now()

    def _read_now(self) -> None:
        with self._lock:
            connection = self._connection
            if connection.closed:
                return
            try:
                self._wire.flush()
                data = self._wire.read()
                if data:
                    connection.feed(data)
                    self._flush()
            except ConnectionFault as fault:
                connection.report_fault(fault)
                self._flush()
                self._lose(RpcError(Status.INTERNAL, f"the server broke HTTP/2: {fault}"))
            except RpcError as error:
                self._lose(error)
            if connection.gone and not connection.streams:
                self._lose(RpcError(Status.UNAVAILABLE, "the server is going away"))

    def _push(self) -> None:
        with self._lock:
            try:
                self._wire.flush()
            except RpcError as error:
                self._lose(error)

    def _follow(self, exchange: Exchange, left: float | None) -> None:
        woken = threading.Event()
        with self._lock:
            exchange.waiter = self._waiting[exchange.id] = woken
        # The reader may have left before we were in the list, and then nobody would wake us.
        if not exchange.ready and self._reading.locked():
            woken.wait(left)
        with self._lock:
            exchange.waiter = None
            del self._waiting[exchange.id]

    def _hand_over(self) -> None:
        if self._waiting and not self._reading.locked():
            with self._lock:
                for woken in self._waiting.values():
                    if not woken.is_set():
                        woken.set()
                        return

    def _flush(self) -> None:
        connection = self._connection
        if not connection.out:
            return
        data, connection.out = b"".join(connection.out), []
        try:
            self._wire.write(data)
        except RpcError as error:
            self._lose(error)

    def _lose(self, error: RpcError) -> None:
        self._connection.fail_all(error)
        with contextlib.suppress(OSError):
            self._wire.close()


def _compute_seconds_left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()
