"""Client and server of binlake.rpc on the simulated network: `Channel` and `RpcServer`, as the product uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from binlake.rpc import RpcError, Status
from binlake.rpc.messages import Splitter
from simulator.network import NO_HEADERS, SILENCE_S, Call, Connection, Network
from simulator.scheduler import Process


class Channel:
    """binlake.rpc.Channel. Belongs to the machine of the thread that makes the first call."""

    network: Network

    def __init__(self, address: str, *, tls: Any = None, gzip: bool = False, connect_timeout_s: float = 10.0,
                 limits: Any = None) -> None:  # fmt: skip
        del tls, gzip, limits
        self.address = address
        self._connect_timeout_s = connect_timeout_s
        self._connection: Connection | None = None
        self._closed = False

    def call(self, method: str, message: bytes, timeout_s: float | None = None) -> bytes:
        """A unary call."""
        return self.start(method, message, timeout_s).await_result()

    def start(self, method: str, message: bytes, timeout_s: float | None = None) -> Pending:
        """Start a unary call; its result is awaited later."""
        return Pending(self._begin(method, message, stream=False), timeout_s)

    def open_stream(self, method: str, message: bytes, *, timeout_s: float | None = None,
               idle_timeout_s: float | None = None,
               metadata: Sequence[tuple[str, str]] = ()) -> Stream:  # fmt: skip
        """A streaming call."""
        del timeout_s
        return Stream(self._begin(method, message, stream=True, headers=dict(metadata)), idle_timeout_s)

    def close(self) -> None:
        """Close it."""
        self._closed = True
        for call in list(self._connection.calls) if self._connection else []:
            call.cancel()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, method: str, message: bytes, *, stream: bool, headers: Mapping[str, str] = NO_HEADERS) -> Call:
        if self._closed:
            raise RpcError(Status.CANCELLED, "the channel was closed")
        connection = self._connected()
        call = Call(connection, stream, headers)
        connection.send(lambda: connection.server.receive(method, message, call))
        self.network.scheduler.maybe_pause()
        return call

    def _connected(self) -> Connection:
        network, scheduler = self.network, self.network.scheduler
        task = scheduler.current
        here = task.process.machine if task is not None and task.process is not None else "outside"
        known = self._connection
        if known is not None and known.usable:
            return known
        server = network.server_at(self.address, here)
        if server is None:
            scheduler.sleep(network.delay())
            raise RpcError(Status.UNAVAILABLE, "connection refused", where={"addr": self.address})
        if {(here, server.machine), (server.machine, here)} & network.cut:
            scheduler.sleep(self._connect_timeout_s)
            raise RpcError(Status.UNAVAILABLE, "no connection in time", where={"addr": self.address})
        self._connection = Connection(network, here, server)
        return self._connection


class Pending:
    """A unary call in flight."""

    def __init__(self, call: Call, timeout_s: float | None) -> None:
        self._call = call
        self._scheduler = call.connection.network.scheduler
        self._until = self._scheduler.now + (SILENCE_S if timeout_s is None else timeout_s)

    def await_result(self) -> bytes:
        """The answer. Raises RpcError."""
        call = self._call
        with call.changed:
            call.changed.wait_for(lambda: call.done, self._until - self._scheduler.now)
        if not call.done:
            call.cancel()
            raise RpcError(Status.DEADLINE_EXCEEDED, "no answer in time")
        if call.error is not None:
            raise call.error
        return call.parts[0]


class Stream:
    """A streaming call."""

    def __init__(self, call: Call, idle_timeout_s: float | None) -> None:
        self._call = call
        self._idle_timeout_s = idle_timeout_s
        self._splitter = Splitter(1 << 31)

    def receive_batches(self) -> Iterator[list[bytes]]:
        """Batches of messages as they arrive."""
        call = self._call
        while True:
            with call.changed:
                call.changed.wait_for(lambda: call.parts or call.done, self._idle_timeout_s)
            parts, call.parts = call.parts, []
            if parts:
                yield self._splitter.feed(parts)
            elif call.done:
                if call.error is not None:
                    raise call.error
                return
            else:
                raise RpcError(Status.DEADLINE_EXCEEDED, f"nothing was received for {self._idle_timeout_s:g} s")

    def __iter__(self) -> Iterator[bytes]:
        for batch in self.receive_batches():
            yield from batch

    def cancel(self) -> None:
        """Cancel the call."""
        self._call.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Server:
    """binlake.rpc.RpcServer."""

    network: Network

    def __init__(self, *, http: Any = None, limits: Any = None, name: str = "rpc") -> None:
        del http, limits
        task = self.network.scheduler.current
        assert task is not None
        assert task.process is not None
        self.process: Process = task.process
        self.machine: str = self.process.machine
        self.methods: dict[str, Callable[[Call, bytes], None]] = {}
        self.active: dict[Call, None] = {}
        self.connections: list[Connection] = []
        self.started = False
        self._name = name
        self._queue = self.network.threading.SimpleQueue()
        self.process.on_death.append(self._died)

    def add(self, path: str, handler: Callable[[Call, bytes], None], *, takes_views: bool = False) -> None:
        """Serve by a handler on the loop; here a message is never a view."""
        del takes_views
        self.methods[path] = handler

    def add_blocking(self, path: str, work: Callable[[bytes], bytes]) -> None:
        """Serve by a handler on a thread."""

        def run(call: Call, message: bytes) -> None:
            try:
                answer = work(message)
            except RpcError as error:
                status, text = error.status, error.message
                self.run_on_loop(lambda: call.fail(status, text))
            except AssertionError:
                raise
            except Exception as error:  # noqa: BLE001 - the caller is told, as by the product
                what = f"{type(error).__name__}: {error}"
                self.run_on_loop(lambda: call.fail(Status.UNKNOWN, what))
            else:
                self.run_on_loop(lambda: call.reply(answer))

        self.methods[path] = lambda call, message: self._thread(lambda: run(call, message))

    def add_streaming(self, path: str, work: Callable[[bytes, Any], None]) -> None:
        """Serve a stream by a handler on a thread."""

        def run(call: Call, message: bytes) -> None:
            try:
                work(message, Sink(self, call))
            except RpcError as error:
                status, text = error.status, error.message
                self.run_on_loop(lambda: call.fail(status, text))
            else:
                self.run_on_loop(call.finish_ok)

        self.methods[path] = lambda call, message: self._thread(lambda: run(call, message))

    def set_serving(self, serving: bool, service: str = "") -> None:
        """Not used here."""

    def listen(self, address: str, tls: Any = None) -> str:
        """Listen at an address."""
        del tls
        self.network.listen(address, self)
        return address

    def start(self) -> None:
        """Begin to answer."""
        self.started = True
        self._thread(self._loop)

    def stop(self, grace_s: float = 10.0) -> None:
        """Let calls finish, then end them."""
        self.started = False
        self.network.leave(self)
        until = self.network.scheduler.now + grace_s
        # After the end of a run, time no longer passes.
        while self.active and self.network.scheduler.now < until and not self.network.scheduler.over:
            self.network.scheduler.sleep(0.02)
        for call in list(self.active):
            call.fail(Status.UNAVAILABLE, "the server is stopping")
        self._queue.put(None)

    def run_on_loop(self, action: Callable[[], None]) -> None:
        """Run on the loop."""
        self._queue._items.append(action)
        self._queue._changed.notify()

    def run_after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run on the loop, later."""
        self.network.scheduler.after(delay_s, lambda: self.run_on_loop(action))

    def receive(self, method: str, message: bytes, call: Call) -> None:
        """Handle a request."""
        if self.process.dead or not self.started:
            call.lost()
            return
        self.active[call] = None
        self.network.observe(self, method, message, call)
        handler = self.methods.get(method)
        if handler is None:
            call.fail(Status.UNIMPLEMENTED, f"unknown method {method}")
        else:
            self.run_on_loop(lambda: handler(call, message))

    def _loop(self) -> None:
        while (action := self._queue.get()) is not None:
            action()

    def _thread(self, work: Callable[[], None]) -> None:
        self.network.scheduler.spawn(work, self._name, self.process)

    def _died(self) -> None:
        self.network.leave(self)
        if self.process.why != "power":
            for connection in self.connections:
                connection.reset()
        else:  # no error is sent: a waiting client notices only that no answer comes
            for connection in self.connections:
                self.network.scheduler.after(SILENCE_S, connection.reset)


class Sink:
    """Accepts what a streaming handler sends."""

    def __init__(self, server: Server, call: Call) -> None:
        self.call = call
        self.on_gone: Callable[[], None] | None = None
        self.alive = True
        self._server = server
        call.on_end = self._ended

    def send_framed(self, data: bytes) -> bool:
        """Send messages; False when the client no longer listens."""
        self._server.network.scheduler.maybe_pause()
        if self.alive:
            self._server.run_on_loop(lambda: self.call.send(data))
        return self.alive

    def _ended(self) -> None:
        self.alive = False
        if self.on_gone is not None:
            self.on_gone()
