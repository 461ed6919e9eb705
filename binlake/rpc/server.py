"""RpcServer: one event loop in its own thread, listeners (TCP, TLS, Unix socket), and an orderly stop.

A port serves gRPC and plain HTTP: the first bytes distinguish HTTP/2 from HTTP/1.1, content-type distinguishes gRPC
from plain HTTP."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import uvloop

from binlake.errors import Permanent
from binlake.rpc.call import Handler
from binlake.rpc.frames import PREFACE
from binlake.rpc.handlers import Health, PlainRequest, RpcWorkers, Serving, StreamSink
from binlake.rpc.host import Peer, Peers, read_peer_address
from binlake.rpc.http1 import Http1Connection
from binlake.rpc.limits import Assembly, Limits, SparingLog
from binlake.rpc.request import HttpHandler, HttpRequest, HttpResponse
from binlake.rpc.server_connection import ServerConnection
from binlake.rpc.sockets import Tls

log = SparingLog()

_TICK_S = 0.05
_BACKLOG = 1024
_RESERVED_FILES = 1000  # of the process, for data, index and its own clients
_MIN_CONNECTIONS = 100


_LIMITS = Limits()


class RpcServer:
    """A gRPC server; binlake.rpc shows its use. Thread-safe, except for methods marked "on the loop".

    `name`: prefix of its threads' names.
    """

    def __init__(self, *, http: HttpHandler | None = None, limits: Limits = _LIMITS, name: str = "rpc") -> None:
        self.limits = limits
        self.methods: dict[str, Handler] = {}
        self.take_views: set[str] = set()
        self.health = Health()
        self.clock = time.monotonic
        self.assembly = Assembly(limits.assembly_bytes, lambda: self.clock())
        self._http = http
        self._loop = uvloop.new_event_loop()
        self._workers = RpcWorkers(self._loop, limits.streaming_calls)
        self._sockets: list[tuple[socket.socket, ssl.SSLContext | None, Tls | None]] = []
        self._paths: list[Path] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self._peers = Peers(_compute_connection_limit(limits), limits.waiting_calls)
        self._thread = threading.Thread(target=self._run, name=f"{name}-loop", daemon=True)
        self._stopped = False
        self.methods.update(self.health.list_handlers())

    # methods

    def add(self, path: str, handler: Handler, *, takes_views: bool = False) -> None:
        """Serve the method `/package.Service/Method` by `handler` on the loop; see Handler.

        `takes_views`: it is given a large message as a memoryview, which is not copied.
        """
        self.methods[path] = handler
        if takes_views:
            self.take_views.add(path)

    def add_blocking(self, path: str, work: Callable[[bytes], bytes]) -> None:
        """Serve a unary method by `work(request) -> response` on a pool of threads."""
        self.methods[path] = self._workers.build_unary_handler(work)

    def add_streaming(self, path: str, work: Callable[[bytes, StreamSink], None]) -> None:
        """Serve a server-streaming method by `work(request, sink)`, each call in its own thread."""
        self.methods[path] = self._workers.build_streaming_handler(work)

    def set_serving(self, serving: bool, service: str = "") -> None:
        """Set the health state of `service`."""
        state = Serving.SERVING if serving else Serving.NOT_SERVING
        self.run_on_loop(lambda: self.health.set(service, state))

    # life cycle

    def listen(self, address: str, tls: Tls | None = None) -> str:
        """Bind HOST:PORT (port 0: a free one); returns the address. Raises Permanent if in use, ConfigError for TLS."""
        host, _, port = address.rpartition(":")
        context = tls.build_server_context() if tls is not None else None
        bare = host.strip("[]")
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        try:
            bound = socket.create_server((bare, int(port)), family=family, backlog=_BACKLOG)
        except (OSError, ValueError) as error:
            raise Permanent("cannot listen", where={"addr": address, "reason": error}) from None
        self._sockets.append((bound, context, tls))
        return f"{host}:{bound.getsockname()[1]}"

    def listen_unix(self, path: Path) -> None:
        """Bind a Unix socket; an unused socket file at this path is replaced. Raises Permanent."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.is_socket() and not _is_answering(path):
                path.unlink()
            bound.bind(str(path))
            bound.listen(_BACKLOG)
        except OSError as error:
            bound.close()
            raise Permanent("cannot listen", where={"socket": path, "reason": error}) from None
        self._sockets.append((bound, None, None))
        self._paths.append(path)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._accept(), self._loop).result()

    def stop(self, grace_s: float = 10.0) -> None:
        """Accept no new calls, wait at most `grace_s` for running calls, then end them; idempotent."""
        if self._stopped:
            return
        self._stopped = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._drain(grace_s), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        else:
            self._loop.close()
        for bound, _, _ in self._sockets:
            bound.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._workers.close()

    def run_on_loop(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop; from any thread."""
        self._workers.run_on_loop(action)

    def run_after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` on the loop after `delay_s`; called on the loop."""
        self._loop.call_later(delay_s, action)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _accept(self) -> None:
        for bound, context, tls in self._sockets:
            self._listeners.append(await self._start_listener(bound, context, tls))
        self._loop.call_later(_TICK_S, self._tick)

    async def _start_listener(
        self, bound: socket.socket, context: ssl.SSLContext | None, tls: Tls | None
    ) -> asyncio.AbstractServer:
        def build_detector() -> _ProtocolDetector:
            return _ProtocolDetector(self, self._loop, tls)

        secure: dict[str, Any] = {}
        if context is not None:
            secure = {"ssl": context, "ssl_handshake_timeout": self.limits.header_wait_s}
        if bound.family == socket.AF_UNIX:
            return await self._loop.create_unix_server(build_detector, sock=bound)
        return await self._loop.create_server(build_detector, sock=bound, backlog=_BACKLOG, **secure)

    async def _drain(self, grace_s: float) -> None:
        for listener in self._listeners:
            listener.close()
        until = self.clock() + grace_s
        self.health.close()
        for peer in list(self._peers.peers):
            peer.drain()
        while self.clock() < until and any(not peer.idle for peer in self._peers.peers):
            await asyncio.sleep(_TICK_S / 5)
        for peer in list(self._peers.peers):
            peer.end_calls()
        until = min(until, self.clock() + 1)
        while self._peers.peers and self.clock() < until:
            await asyncio.sleep(_TICK_S / 5)

    def _tick(self) -> None:
        self._peers.tick(self.clock())
        self._loop.call_later(_TICK_S, self._tick)

    # methods for connections

    def add_silent(self, detector: _ProtocolDetector) -> None:
        """Add a connection that has sent nothing yet."""
        self._peers.free_slots()
        self._peers.silent.add(detector)

    def remove_silent(self, detector: _ProtocolDetector) -> None:
        """Remove the connection, since its protocol is known, or it has closed."""
        self._peers.silent.discard(detector)

    def add_connection(self, connection: Peer) -> None:
        """Add an open connection."""
        self._peers.peers.add(connection)

    def remove_connection(self, connection: Peer) -> None:
        """Remove a closed connection."""
        self._peers.peers.discard(connection)

    def run_in_thread(self, action: Callable[[], Callable[[], None]]) -> None:
        """Run `action` in a thread, then call its result on the loop."""
        self._workers.run(action)

    def answer_http(self, request: HttpRequest, answer: Callable[[HttpResponse], None], address: str) -> None:
        """Answer a plain HTTP request in a separate pool; `address`: of the client."""
        handler = self._http or _answer_not_found

        def answer_request() -> Callable[[], None]:
            try:
                response = handler(request)
            except Exception as error:
                log.exception("http_handler_failed", path=request.path)
                response = HttpResponse(500, "text/plain; charset=utf-8", f"{type(error).__name__}: {error}\n".encode())
            return lambda: answer(response)

        def refuse() -> None:
            answer(HttpResponse(503, "text/plain; charset=utf-8", b"too many page requests at once\n"))

        self._workers.run_page(address, request.path, PlainRequest(answer_request, refuse))


class _ProtocolDetector(asyncio.Protocol):
    """Detects the protocol of a connection by its first bytes, and passes it to that implementation."""

    def __init__(self, server: RpcServer, loop: asyncio.AbstractEventLoop, tls: Tls | None) -> None:
        self._server = server
        self._loop = loop
        self._tls = tls
        self._first = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.address = ""
        self.heard_at = server.clock()

    def evict(self) -> None:
        """Close the connection, since its slot is needed."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse a client whose certificate is not allowed."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = read_peer_address(transport)
        if self._tls is not None and not self._tls.allows(transport.get_extra_info("peercert")):
            log.warning("client_certificate_refused", peer=transport.get_extra_info("peername"))
            self._transport.abort()
        else:
            _tune(transport.get_extra_info("socket"))
            self._server.add_silent(self)
            self._deadline = self._loop.call_later(self._server.limits.header_wait_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Decide as soon as the first bytes suffice."""
        if self._transport is None or self._transport.is_closing():
            return  # refused: its bytes are not read
        self._first += data
        if len(self._first) < len(PREFACE) and PREFACE.startswith(self._first):
            return
        transport = self._transport
        self._release()
        # A damaged HTTP/2 preface is answered in HTTP/2.
        speaks_http2 = self._first.startswith(b"PRI * HTTP/2")
        talk = ServerConnection(self._server, self._loop) if speaks_http2 else Http1Connection(self._server)
        transport.set_protocol(talk)
        talk.connection_made(transport)
        talk.data_received(self._first)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called if the connection closes before its protocol is known."""
        del exc
        self._release()

    def _release(self) -> None:
        self._server.remove_silent(self)
        if self._deadline is not None:
            self._deadline.cancel()


def _compute_connection_limit(limits: Limits) -> int:
    # A process without free file handles cannot even refuse new connections.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(limits.connections, max(_MIN_CONNECTIONS, files - _RESERVED_FILES))


def _tune(bound: socket.socket | None) -> None:
    if bound is None or bound.family == socket.AF_UNIX:
        return
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel notices if a peer's machine has failed, so no PING is needed.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)


def _is_answering(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _answer_not_found(request: HttpRequest) -> HttpResponse:
    return HttpResponse(404, "text/plain; charset=utf-8", f"nothing at {request.path}\n".encode())
