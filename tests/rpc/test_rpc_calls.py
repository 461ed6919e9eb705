"""End-to-end calls between our client and server and those of grpcio, which behave the same."""

from __future__ import annotations

import contextlib
import functools
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from rpc_helpers import ECHO, EMPTY, LATE, STREAM, TestServer, serving, until
from support.examples import spread

from binlake.rpc import Call, Channel, Limits, RpcError, Status, messages
from binlake.rpc.client import Link
from binlake.rpc.client_connection import Exchange
from deploy.local.ports import free_port

BIG = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
Unary = Callable[..., bytes]


class GrpcioClient:
    """A grpcio client with the interface of our Channel."""

    def __init__(self, address: str, *, gzip: bool = False) -> None:
        self._compression = grpc.Compression.Gzip if gzip else None
        self._channel = grpc.insecure_channel(address, options=BIG)

    def call(self, method: str, message: bytes, timeout_s: float | None = 60) -> bytes:
        try:
            return self._channel.unary_unary(method)(message, timeout=timeout_s, compression=self._compression)
        except grpc.RpcError as error:
            raise RpcError(Status[error.code().name], error.details() or "") from None

    def open_stream(self, method: str, message: bytes) -> Iterator[bytes]:
        try:
            yield from self._channel.unary_stream(method)(message, timeout=120, compression=self._compression)
        except grpc.RpcError as error:
            raise RpcError(Status[error.code().name], error.details() or "") from None

    def __enter__(self) -> GrpcioClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


class GrpcioServer(grpc.GenericRpcHandler):
    """The methods of TestServer on grpcio."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        unary = {ECHO: lambda m, _: m, EMPTY: lambda _m, _: b"", "/t.T/Upper": lambda m, _: m.upper()}
        unary["/t.T/Refuse"] = self._refuse
        stream = {STREAM: self._stream, "/t.T/StreamRefuse": self._stream_refuse}
        method = handler_call_details.method
        if method in unary:
            return grpc.unary_unary_rpc_method_handler(unary[method])
        return grpc.unary_stream_rpc_method_handler(stream[method]) if method in stream else None

    def _refuse(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        code = next(code for code in grpc.StatusCode if code.value[0] == int(message))
        context.abort(code, "because: 100% ünwell")

    def _stream(self, message: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        count, size = map(int, message.split())
        for _ in range(count):
            yield b"s" * size

    def _stream_refuse(self, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield message
        context.abort(grpc.StatusCode.OUT_OF_RANGE, "no more")


@contextlib.contextmanager
def grpcio_server() -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(8), options=BIG)
    server.add_generic_rpc_handlers((GrpcioServer(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.fixture(params=["lean client, lean server", "grpcio client, lean server", "lean client, grpcio server"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Channel]]:
    """Creates clients of one server, for the three pairs in which at least one side is ours."""
    client, server = (part.split()[0] for part in request.param.split(", "))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(grpcio_server()) if server == "grpcio" else stack.enter_context(serving())[1]
        make = Channel if client == "lean" else GrpcioClient
        yield lambda **options: stack.enter_context(make(address, **options))


@pytest.mark.long
@pytest.mark.parametrize("size", spread([0, 20 << 20, 1, 16_384, 5, 65_536, 65_535, 1_000_000], least=4))
@pytest.mark.parametrize("gzip", [False, True])
def test_message_of_any_size_is_returned_unchanged(connect: Callable[..., Channel], size: int, gzip: bool) -> None:
    message = (random.Random(1).randbytes(1 << 16) * (size // (1 << 16) + 1))[:size]
    assert connect(gzip=gzip).call(ECHO, message, 120) == message


@pytest.mark.parametrize("gzip", [False, True])
def test_message_whose_pieces_are_read_when_they_are_sent(gzip: bool) -> None:
    # U-06
    data, sizes = random.Random(2).randbytes(3_000_000), list[int]()

    class Read:
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, at: slice, /) -> bytes:
            sizes.append(len(data[at]))
            return data[at]

    with serving() as (_, address), Channel(address, gzip=gzip) as channel:
        assert channel.call(ECHO, (b"head", Read(), Read()), 120) == b"head" + data + data
    assert sum(sizes) == 2 * len(data)
    assert gzip or max(sizes) <= 256 << 10


@pytest.mark.parametrize("gzip", [False, True])
def test_message_in_pieces_is_one_message(gzip: bool) -> None:
    pieces = (b"head", random.Random(1).randbytes(1_300_000), b"", b"end")
    with serving() as (_, address), Channel(address, gzip=gzip) as channel:
        assert channel.call(ECHO, pieces, 120) == b"".join(pieces)


def test_too_high_compression_ratio_is_refused_before_unpacking() -> None:
    with serving() as (_, address), Channel(address, gzip=True) as channel:
        with pytest.raises(RpcError, match="more than 64 times: do not compress it") as caught:
            channel.call(ECHO, bytes(20 << 20), 60)
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert channel.call(ECHO, bytes(1 << 20), 60) == bytes(1 << 20)


def test_answers_may_be_empty_or_come_from_a_thread(connect: Callable[..., Channel]) -> None:
    client = connect()
    assert client.call(EMPTY, b"x", 60) == b""
    assert client.call("/t.T/Upper", b"abc", 60) == b"ABC"


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_each_status_is_returned_with_its_text(connect: Callable[..., Channel], status: Status) -> None:
    with pytest.raises(RpcError) as caught:
        connect().call("/t.T/Refuse", b"%d" % status, 60)
    assert (caught.value.status, caught.value.message) == (status, "because: 100% ünwell")


def test_unknown_method_is_unimplemented(connect: Callable[..., Channel]) -> None:
    with pytest.raises(RpcError) as caught:
        connect().call("/t.T/Nothing", b"x" * 200_000, 60)
    assert caught.value.status is Status.UNIMPLEMENTED


@pytest.mark.long
@pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 0), (1000, 200), (2, 9_000_000), (2000, 5000)])
@pytest.mark.parametrize("gzip", [False, True])
def test_stream_returns_every_message(connect: Callable[..., Channel], count: int, size: int, gzip: bool) -> None:
    found = list(connect(gzip=gzip).open_stream(STREAM, b"%d %d" % (count, size)))
    assert found == [b"s" * size] * count


def test_failed_stream_returns_the_messages_before(connect: Callable[..., Channel]) -> None:
    stream = iter(connect().open_stream("/t.T/StreamRefuse", b"first"))
    assert next(stream) == b"first"
    with pytest.raises(RpcError, match="no more") as caught:
        next(stream)
    assert caught.value.status is Status.OUT_OF_RANGE


@pytest.mark.parametrize("method", ["/t.T/Break", "/t.T/BreakLoop"])
def test_exception_in_a_handler_is_status_unknown(method: str) -> None:
    with serving() as (_, address), Channel(address) as channel:
        with pytest.raises(RpcError, match="IndexError") as caught:
            channel.call(method, b"short", 60)
        assert caught.value.status is Status.UNKNOWN
        assert channel.call(ECHO, b"still here", 60) == b"still here"


@pytest.mark.long
def test_many_calls_share_a_connection_and_get_their_own_answers() -> None:
    with serving() as (server, address), Channel(address) as channel:
        pending = [channel.start(ECHO, b"%d" % number) for number in range(2000)]
        assert [call.await_result() for call in reversed(pending)] == [
            b"%d" % number for number in reversed(range(2000))
        ]
        wrong: list[int] = []

        def work(number: int) -> None:
            for turn in range(50):
                message = b"%d %d" % (number, turn) + b"x" * (number * turn)
                if channel.call(ECHO, message, 120) != message:
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
        assert not wrong
        assert not any(thread.is_alive() for thread in threads)
        assert len(server._peers.peers) == 1


def test_stream_and_calls_share_a_connection() -> None:
    with serving() as (_, address), Channel(address) as channel, channel.open_stream(STREAM, b"100000 1000") as stream:
        for batch in islice(stream.receive_batches(), 20):
            assert batch[0] == b"s" * 1000
            assert channel.call(ECHO, b"between", 60) == b"between"


@pytest.mark.long
def test_deadline_ends_a_call_on_both_sides() -> None:
    with serving() as (server, address), Channel(address) as channel:
        assert channel.call(ECHO, b"", 60) == b""  # connect first, so that the deadline applies only to the call
        begun = time.monotonic()
        with pytest.raises(RpcError) as caught:
            channel.call(LATE, b"", 1.5)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert time.monotonic() - begun < 30
        until(lambda: server.gone == 1, "the server knows")
        server.answer_late()  # has no effect
        assert channel.call(ECHO, b"x", 60) == b"x"


@pytest.mark.long
def test_server_ends_a_call_at_its_deadline() -> None:
    with serving() as (server, address), grpc.insecure_channel(address) as channel:
        assert channel.unary_unary(ECHO)(b"", timeout=60) == b""
        call = channel.unary_unary(LATE).future(b"", timeout=1.5)
        assert call.exception(60).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: server.gone == 1, "its handler is told")


def test_cancelled_stream_ends_its_handler() -> None:
    with serving() as (server, address), Channel(address) as channel:
        with channel.open_stream(STREAM, b"100000000 1000") as stream:
            assert next(iter(stream))
        until(lambda: server.gone == 1, "the handler is told")
        until(lambda: not server._workers._streams, "its thread ends")
        assert channel.call(ECHO, b"x", 60) == b"x"


def test_idle_timeout_of_a_stream_is_an_error() -> None:
    with serving() as (_, address), Channel(address) as channel:
        silent = channel.open_stream(LATE, b"", idle_timeout_s=0.2)
        with pytest.raises(RpcError, match="nothing was received") as caught:
            next(iter(silent))
        assert caught.value.status is Status.DEADLINE_EXCEEDED


def test_slowly_arriving_message_does_not_hit_the_idle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    # A large binlog on a slow connection: the idle timeout counts from the last byte, not from the last message.
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("binlake.rpc.client.time", clock)
    taken = [0]
    take = Link.take

    def counted(link: Link, exchange: Exchange) -> list[bytes]:
        parts = take(link, exchange)
        taken[0] += sum(map(len, parts))
        return parts

    monkeypatch.setattr(Link, "take", counted)
    message = messages.encode_message(bytes(1000))
    calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
    with serving() as (server, address), Channel(address) as channel:
        server.add("/t.T/Slow", lambda call, _: calls.put(call))
        stream = channel.open_stream("/t.T/Slow", b"", idle_timeout_s=30)
        with futures.ThreadPoolExecutor(1) as pool:
            found = pool.submit(next, iter(stream))
            call = calls.get(timeout=60)
            for begin in range(0, len(message), 200):
                clock.now += 20
                server.run_on_loop(functools.partial(call.send, message[begin : begin + 200]))
                until(lambda end=begin + 200: taken[0] >= min(end, len(message)) or found.done(), "it came")
            assert found.result(60) == bytes(1000)
        server.run_on_loop(call.finish_ok)


def test_message_above_the_limit_is_refused_with_both_sizes_and_the_server_continues() -> None:
    # S0-07
    with serving(Limits(message_bytes=100_000)) as (_, address), Channel(address) as channel:
        for size in (100_001, 5 << 20):
            with pytest.raises(RpcError, match=f"{size} vs. 100000") as caught:
                channel.call(ECHO, b"x" * size, 60)
            assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert len(channel.call(ECHO, b"x" * 100_000, 60)) == 100_000
        bomb = Channel(address, gzip=True, limits=Limits(message_bytes=1000))
        with bomb, pytest.raises(RpcError, match="larger than max"):
            bomb.call(ECHO, b"x" * 2000, 60)


def test_compression_bomb_is_refused_by_its_unpacked_size() -> None:
    with serving(Limits(message_bytes=100_000)) as (_, address), GrpcioClient(address, gzip=True) as client:
        with pytest.raises(RpcError, match="larger than max"):
            client.call(ECHO, bytes(50 << 20))
        assert client.call(ECHO, b"x" * 1000) == b"x" * 1000


def test_lost_server_is_unavailable_and_its_successor_is_found() -> None:
    with serving(address=f"127.0.0.1:{free_port()}") as (_, address):
        channel = Channel(address)
        assert channel.call(ECHO, b"1", 60) == b"1"
    with pytest.raises(RpcError) as caught:
        channel.call(ECHO, b"2", 60)
    assert caught.value.status is Status.UNAVAILABLE
    again = TestServer()
    again.listen(address)
    again.start()
    assert channel.call(ECHO, b"3", 60) == b"3"
    again.stop(0)
    channel.close()


def test_stop_waits_for_running_calls_and_accepts_no_new_ones() -> None:
    server = TestServer()
    address = server.listen("127.0.0.1:0")
    server.start()
    channel = Channel(address)
    running = channel.start(LATE, b"")
    until(lambda: bool(server.waiting), "it runs")
    stopping = threading.Thread(target=server.stop, args=(120,))
    stopping.start()
    until(lambda: bool(server._listeners) and not server._listeners[0].is_serving(), "it drains")
    with pytest.raises(RpcError) as caught:
        Channel(address).call(ECHO, b"new", 60)
    assert caught.value.status is Status.UNAVAILABLE
    server.answer_late()
    assert running.await_result() == b"late"
    stopping.join(60)
    assert not stopping.is_alive()
    channel.close()


def test_stop_without_grace_ends_calls_as_unavailable() -> None:
    with serving() as (server, address), Channel(address) as channel:
        running = channel.start(LATE, b"")
        until(lambda: bool(server.waiting), "it runs")
        server.stop(0.1)
        with pytest.raises(RpcError) as caught:
            running.await_result()
        assert caught.value.status is Status.UNAVAILABLE


def leave_dead_socket(path: Path) -> None:
    """Leave a socket file behind as a killed server does."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_unix_socket_serves_the_same_methods(short_path: Path) -> None:
    path = short_path / "pump.sock"
    for _ in range(2):  # the second server finds the socket file of a killed one
        server = TestServer()
        server.listen_unix(path)
        server.start()
        with Channel(f"unix:{path}") as channel, GrpcioClient(f"unix:{path}") as other:
            assert channel.call(ECHO, b"x", 60) == other.call(ECHO, b"x") == b"x"
        server.stop(0)
        assert not path.exists()
        leave_dead_socket(path)


def test_health_check_and_watch() -> None:
    check, watch = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
    with serving() as (server, address), GrpcioClient(address) as client:
        assert client.call(check, b"") == b"\x08\x01"
        with pytest.raises(RpcError) as caught:
            client.call(check, b"\x0a\x04none")
        assert caught.value.status is Status.NOT_FOUND
        watching = client.open_stream(watch, b"\x0a\x01s")
        assert next(watching) == b"\x08\x03"
        server.set_serving(True, "s")
        assert next(watching) == b"\x08\x01"
        server.set_serving(False, "s")
        assert next(watching) == b"\x08\x02"


def test_stop_does_not_wait_for_health_watchers() -> None:
    with serving() as (server, address), Channel(address) as channel:
        watching = iter(channel.open_stream("/grpc.health.v1.Health/Watch", b""))
        assert next(watching) == b"\x08\x01"
        begun = time.monotonic()
        server.stop(300)
        assert time.monotonic() - begun < 60
        assert next(watching) == b"\x08\x02"
        with pytest.raises(RpcError, match="stopping"):
            next(watching)
