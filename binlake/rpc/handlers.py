"""Handlers of calls: those that may block run on threads, unary ones on a small pool, streaming ones with one each.

One is built in: grpc.health.v1 with Check and Watch. Its two messages have one field each, and are encoded by hand:
generated classes would clash with those of any other package in the process that contains the same proto file.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum

from binlake.rpc.call import Call, Handler
from binlake.rpc.limits import FairQueue, SparingLog, choose_slot_to_free
from binlake.rpc.messages import RpcError, Status

log = SparingLog()

_THREADS = 16
_PAGE_THREADS = 4
_WAITING_PAGES = 256
_WAITING_CALLS = 10_000
_WAITING_BYTES = 1 << 20  # of one stream, before its thread must wait
_LOOK_S = 1.0
_WATCHERS = 1000


@dataclass(frozen=True, eq=False)
class PlainRequest:
    """A plain HTTP request: `work` runs in a thread, its result is called on the loop; or `refuse` is called there."""

    work: Callable[[], Callable[[], None]]
    refuse: Callable[[], None]


class RpcWorkers:
    """Threads for one server; `loop` is the server's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, streaming_calls: int) -> None:
        self.loop = loop
        self._pool = ThreadPoolExecutor(_THREADS, "rpc-worker")
        # A separate pool: pages must answer even while all threads for calls are waiting.
        self._pages = ThreadPoolExecutor(_PAGE_THREADS, "rpc-page")
        self._waiting_pages: FairQueue[PlainRequest] = FairQueue(_WAITING_PAGES)
        self._busy_pages = self._asked_calls = 0
        self._streaming_calls = streaming_calls
        self._streams: set[threading.Thread] = set()

    def run(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run `work` in the pool, then call its result on the loop."""
        self._pool.submit(lambda: self.run_on_loop(work()))

    def run_page(self, address: str, kind: str, page: PlainRequest) -> None:
        """Like run(), for plain HTTP, in turn by address and kind of page; called on the loop."""
        refused = self._waiting_pages.put(address, kind, page)
        if refused is not None:
            self.loop.call_soon(refused.refuse)
        if refused is not page and self._busy_pages < _PAGE_THREADS:
            self._start_next_page()

    def _start_next_page(self) -> None:
        page = self._waiting_pages.take()
        if page is not None:
            self._busy_pages += 1
            self._pages.submit(lambda: self.run_on_loop(self._build_page_finisher(page.work())))

    def _build_page_finisher(self, answer: Callable[[], None]) -> Callable[[], None]:
        def finish() -> None:
            self._busy_pages -= 1
            self._start_next_page()
            answer()

        return finish

    def run_on_loop(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop; from any thread. Does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(action)

    def build_unary_handler(self, work: Callable[[bytes], bytes]) -> Handler:
        """A handler that answers with the result of `work(request)`, which may raise RpcError."""

        def run(call: Call, message: bytes) -> Callable[[], None]:
            try:
                answer = work(message)
            except RpcError as error:
                status, text = error.status, error.message
                return lambda: call.fail(status, text)
            except Exception as error:
                log.exception("handler_failed", method=call.request.path)
                text = f"{type(error).__name__}: {error}"
                return lambda: call.fail(Status.UNKNOWN, text)
            return lambda: call.reply(answer)

        def handle(call: Call, message: bytes) -> None:
            if self._asked_calls >= _WAITING_CALLS:
                call.fail(Status.UNAVAILABLE, f"{self._asked_calls} calls are waiting for a thread already")
                return
            self._asked_calls += 1
            self.run(lambda: self._build_call_finisher(run(call, message)))

        return handle

    def _build_call_finisher(self, answer: Callable[[], None]) -> Callable[[], None]:
        def finish() -> None:
            self._asked_calls -= 1
            answer()

        return finish

    def build_streaming_handler(self, work: Callable[[bytes, StreamSink], None]) -> Handler:
        """A handler that runs `work(request, sink)` in its own thread: OK if it returns. It may raise RpcError."""

        def start(call: Call, message: bytes) -> None:
            if len(self._streams) >= self._streaming_calls:
                call.fail(Status.UNAVAILABLE, f"{len(self._streams)} streams are running already")
                return
            sink = StreamSink(self, call)
            thread = threading.Thread(
                target=self._run_stream, args=(work, message, sink), name="rpc-stream", daemon=True
            )
            self._streams.add(thread)
            thread.start()

        return start

    def _run_stream(self, work: Callable[[bytes, StreamSink], None], message: bytes, sink: StreamSink) -> None:
        status, text = Status.OK, ""
        try:
            work(message, sink)
        except RpcError as error:
            status, text = error.status, error.message
        except Exception as error:
            log.exception("handler_failed", method=sink.call.request.path)
            status, text = Status.UNKNOWN, f"{type(error).__name__}: {error}"
        thread = threading.current_thread()

        def end_call() -> None:
            self._streams.discard(thread)
            if status is Status.OK:
                sink.call.finish_ok()
            else:
                sink.call.fail(status, text)

        self.run_on_loop(end_call)

    def close(self) -> None:
        """Accept no more work."""
        for pool in (self._pool, self._pages):
            pool.shutdown(wait=False, cancel_futures=True)


class StreamSink:
    """Sends messages of a streaming handler, from one thread. `on_gone`: called on the loop if the client leaves."""

    def __init__(self, workers: RpcWorkers, call: Call) -> None:
        self.call = call
        self.on_gone: Callable[[], None] | None = None
        self._workers = workers
        self._changed = threading.Condition()
        self._waiting = 0
        self._alive = True
        call.on_sent = self._note_sent
        call.on_end = self._on_stream_ended

    @property
    def alive(self) -> bool:
        """Whether the client is still connected."""
        return self._alive

    def send(self, message: bytes) -> bool:
        """Send one message; see send_framed()."""
        return self.send_framed(self.call.encode_message(message))

    def send_framed(self, data: bytes) -> bool:
        """Send messages that are already framed (`Call.encode_message`): many at once cost as little as one.

        Waits while too many bytes are queued for a slow reader. False: the client has left.
        """
        with self._changed:
            while self._alive and self._waiting >= _WAITING_BYTES:
                self._changed.wait(_LOOK_S)
            if not self._alive:
                return False
            self._waiting += len(data)
        self._workers.run_on_loop(lambda: self.call.send(data))
        return True

    def _note_sent(self, size: int) -> None:
        with self._changed:
            self._waiting -= size
            if self._waiting < _WAITING_BYTES:
                self._changed.notify()

    def _on_stream_ended(self) -> None:
        with self._changed:
            self._alive = False
            self._changed.notify()
        if self.on_gone is not None:
            self.on_gone()


class Serving(IntEnum):
    """HealthCheckResponse.ServingStatus."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """Serving states by service name, "" = the whole server. Used on the loop."""

    def __init__(self) -> None:
        self._services: dict[str, Serving] = {"": Serving.SERVING}
        self._watchers: dict[Call, str] = {}

    def list_handlers(self) -> Mapping[str, Handler]:
        """The handlers of its methods, by path."""
        return {"/grpc.health.v1.Health/Check": self._check, "/grpc.health.v1.Health/Watch": self._watch}

    def set(self, service: str, serving: Serving) -> None:
        """Change a service's state and notify its watchers."""
        if self._services.get(service) is serving:
            return
        self._services[service] = serving
        for call, watched in list(self._watchers.items()):
            if watched == service:
                call.send(call.encode_message(_encode_response(serving)))

    def close(self) -> None:
        """Notify the watchers and end their calls, so that stopping the server does not wait for them."""
        for service in list(self._services):
            self.set(service, Serving.NOT_SERVING)
        for call in list(self._watchers):
            call.fail(Status.UNAVAILABLE, "the server is stopping")

    def _check(self, call: Call, message: bytes) -> None:
        name = _decode_service(message)
        serving = None if name is None else self._services.get(name)
        if name is None:
            call.fail(Status.INTERNAL, "damaged HealthCheckRequest")
        elif serving is None:
            call.fail(Status.NOT_FOUND, f"unknown service {name}")
        else:
            call.reply(_encode_response(serving))

    def _watch(self, call: Call, message: bytes) -> None:
        name = _decode_service(message)
        if name is None:
            call.fail(Status.INTERNAL, "damaged HealthCheckRequest")
            return
        if len(self._watchers) >= _WATCHERS:
            slots = {watcher: watcher.connection.address for watcher in self._watchers}
            loser = choose_slot_to_free(slots, call.connection.address)
            (loser or call).fail(
                Status.UNAVAILABLE, f"{_WATCHERS} watches are open already, most of them from this address"
            )
            if loser is None:
                return
            self._watchers.pop(loser, None)
        self._watchers[call] = name
        call.on_end = lambda: self._forget(call)
        call.send(call.encode_message(_encode_response(self._services.get(name, Serving.SERVICE_UNKNOWN))))

    def _forget(self, call: Call) -> None:
        self._watchers.pop(call, None)
        call.finish_ok()


def _encode_response(serving: Serving) -> bytes:
    return bytes((0x08, serving))


def _decode_service(message: bytes) -> str | None:
    """HealthCheckRequest.service; None for any other message."""
    if not message:
        return ""
    if len(message) < 2 or message[0] != 0x0A or message[1] != len(message) - 2 or message[1] > 127:
        return None
    try:
        return message[2:].decode()
    except UnicodeDecodeError:
        return None
