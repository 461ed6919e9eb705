"""Limits apply to what a peer really costs: announced but unsent bytes and late callers are not punished."""

from __future__ import annotations

import http.client
import socket
from types import SimpleNamespace

import pytest
from rpc_helpers import ECHO, LATE, STREAM, RawPeer, raw, request_block, serving, until

from binlake.rpc import Channel, Limits, RpcError, Status, frames, headers
from binlake.rpc.client_connection import ClientConnection, encode_request_head
from binlake.rpc.frames import Code, Setting
from binlake.rpc.handlers import RpcWorkers

MIB = 1 << 20


def upload(peer: RawPeer, declared: int, sent: int) -> None:
    """Stream 1 with a message of `declared` bytes, of which `sent` are sent."""
    peer.begin(1, declared)
    for at in range(1, sent, 16_000):
        peer.send(frames.encode_frame(frames.DATA, 0, 1, bytes(min(16_000, sent - at))))


def ended(peer: socket.socket) -> bool:
    """Whether the other side closes or resets the connection without an answer."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def test_announced_but_unsent_message_uses_no_memory() -> None:
    with serving(Limits(assembly_bytes=MIB)) as (_, address), raw(address) as peer, Channel(address) as channel:
        peer.begin(1, 1 << 30)
        assert peer.ping()
        assert len(channel.call(ECHO, bytes(5 * MIB), 30)) == 5 * MIB  # a single message may exceed the budget


def test_large_messages_share_a_budget_and_small_ones_have_a_reserve() -> None:
    with serving(Limits(assembly_bytes=MIB)) as (server, address), Channel(address) as channel:
        with raw(address) as peer:
            upload(peer, 4 * MIB, 700_000)
            until(lambda: server.assembly.used == 700_005, "it is on its way")
            with pytest.raises(RpcError, match="too many large messages") as caught:
                channel.call(ECHO, bytes(3 * MIB), 60)
            assert caught.value.status is Status.UNAVAILABLE
            assert len(channel.call(ECHO, bytes(900_000), 60)) == 900_000
        until(lambda: server.assembly.used == 0, "it is given up with its connection")
        assert len(channel.call(ECHO, bytes(3 * MIB), 60)) == 3 * MIB


def test_bodies_of_plain_http_count_too() -> None:
    with serving(Limits(assembly_bytes=MIB)) as (server, address):
        host, _, port = address.rpartition(":")
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n"
        with socket.create_connection((host, int(port)), 60) as plain:
            plain.sendall(head + bytes(120_000))
            until(lambda: server.assembly.used == 120_000, "it is counted")
            client = http.client.HTTPConnection(address, timeout=60)
            client.request("POST", "/", body=bytes(100_000))
            assert client.getresponse().status == 503
        until(lambda: server.assembly.used == 0, "it is given back with its connection")
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/")]
        with raw(address) as peer:
            peer.send(frames.encode_headers(1, headers.encode(fields), end_stream=False))
            peer.send(frames.encode_frame(frames.DATA, 0, 1, bytes(16_000)))
            until(lambda: server.assembly.used == 16_000, "HTTP/2 is counted")
            peer.send(frames.encode_frame(frames.DATA, frames.END_STREAM, 1, bytes(1)))
            assert b"16001" in peer.until(frames.DATA, 1)[3]
        assert server.assembly.used == 0


def test_upload_without_progress_is_ended() -> None:
    with serving(Limits(upload_s=0.2)) as (server, address), raw(address) as peer:
        peer.begin(1, 100_000)
        assert b"no progress" in peer.until(frames.HEADERS, 1)[3]
        assert peer.reset_code(1) == Code.NO_ERROR
        assert server.assembly.used == 0
        peer.call(3, b"next")
        assert peer.until(frames.DATA, 3)[3].endswith(b"next")


def test_deadlines_that_pass_together_are_not_a_rapid_reset() -> None:
    with serving(Limits(resets_per_s=100)) as (server, address), raw(address) as peer:
        ids = range(1, 801, 2)
        for stream_id in ids:
            peer.call(stream_id, b"", LATE)
        until(lambda: len(server.waiting) == len(ids), "all wait")
        clock = server.clock
        server.clock = lambda: clock() + 0.5
        peer.send(b"".join(frames.encode_rst_stream(stream_id, Code.CANCEL) for stream_id in ids))
        assert peer.ping()


def test_output_for_a_reader_without_a_window_is_dropped_at_the_deadline() -> None:
    with serving() as (server, address), raw(address, settings=frames.encode_settings([(4, 0)])) as peer:
        block = request_block(STREAM, (b"grpc-timeout", b"200m"))
        body = len(b"1000 9000").to_bytes(5, "big") + b"1000 9000"
        peer.send(frames.encode_headers(1, block, end_stream=False))
        peer.send(frames.encode_frame(frames.DATA, frames.END_STREAM, 1, body))
        assert peer.reset_code(1) == Code.CANCEL
        until(
            lambda: not server._workers._streams and not any(peer.streams for peer in server._peers.peers),
            "all is freed",
        )
        assert peer.ping()


def test_only_the_stream_without_a_window_is_ended_after_stall_s() -> None:
    closed = frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, 0)])
    with serving(Limits(stall_s=0.3)) as (server, address), raw(address, settings=closed) as peer:
        peer.call(1, b"1000 9000", STREAM)
        assert peer.reset_code(1) == Code.CANCEL
        until(lambda: not server._workers._streams, "its thread ends")
        assert peer.ping()


def test_silent_connections_count_and_are_closed_first() -> None:
    with serving(Limits(connections=3)) as (server, address):
        host, _, port = address.rpartition(":")
        silent = [socket.create_connection((host, int(port)), 60) for _ in range(3)]
        until(lambda: len(server._peers.silent) == 3, "they are in")
        with raw(address) as peer:
            assert peer.ping()
            assert len(server._peers.silent) < 3
        for one in silent:
            one.close()


def test_slow_uploads_are_ended_for_others() -> None:
    with serving(Limits(assembly_bytes=8 * MIB)) as (server, address), raw(address) as slow, raw(address) as quick:
        now = server.clock()
        server.clock = lambda: now
        upload(slow, 900_000, 700_000)
        until(lambda: server.assembly.small.used == 700_005, "it is on its way")
        with Channel(address) as channel, pytest.raises(RpcError, match="too many unfinished requests"):
            channel.call(ECHO, bytes(900_000), 60)  # no upload is slow yet
        now += 6
        upload(quick, 900_000, 800_000)
        assert slow.until(frames.HEADERS, 1)
        until(lambda: server.assembly.small.used == 800_005, "the slow one has given way")
        now += 1
        with Channel(address) as channel, pytest.raises(RpcError, match="too many unfinished requests"):
            channel.call(ECHO, bytes(900_000), 60)
        assert quick.ping()


def test_connection_continues_after_pipelined_requests() -> None:
    with serving() as (_, address):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 60) as plain:
            for group in ((1, 2), (3,), (4, 5)):
                plain.sendall(b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in group))
                data = b""
                while b"GET /%d " % group[-1] not in data:
                    data += (got := plain.recv(1 << 16))
                    assert got, "the connection was closed"


SPOILING = b"\x40\x01a\x01b"  # adds a: b to the dynamic table
SPOILED = b"\xbe"  # refers to its first entry


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "continued"])
def test_refused_header_block_still_updates_the_table(cut: bool) -> None:
    with serving() as (_, address), raw(address) as peer:
        block = (1).to_bytes(4, "big") + b"\x10" + request_block() + SPOILING
        flags = frames.WITH_PRIORITY | frames.END_STREAM
        if cut:
            peer.send(frames.encode_frame(frames.HEADERS, flags, 1, block[:20]))
            peer.send(frames.encode_frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[20:]))
        else:
            peer.send(frames.encode_frame(frames.HEADERS, flags | frames.END_HEADERS, 1, block))
        assert peer.reset_code(1) == Code.PROTOCOL_ERROR
        peer.send(frames.encode_headers(3, request_block() + SPOILED, end_stream=False))
        peer.send(frames.encode_frame(frames.DATA, frames.END_STREAM, 3, bytes(5)))
        assert peer.until(frames.DATA, 3)[3] == bytes(5)


def test_headers_after_the_end_of_a_stream_still_update_the_table() -> None:
    with serving() as (_, address), raw(address) as peer:
        peer.call(1, b"", LATE)
        peer.send(frames.encode_headers(1, SPOILING, end_stream=True))
        assert peer.reset_code(1) == Code.STREAM_CLOSED
        peer.send(frames.encode_headers(3, request_block() + SPOILED, end_stream=False))
        peer.send(frames.encode_frame(frames.DATA, frames.END_STREAM, 3, bytes(5)))
        assert peer.until(frames.DATA, 3)[3] == bytes(5)


def test_huge_content_length_is_malformed() -> None:
    with serving() as (_, address), raw(address) as peer:
        peer.send(frames.encode_headers(1, request_block(ECHO, (b"content-length", b"1" * 5000)), end_stream=True))
        assert peer.reset_code(1) == Code.PROTOCOL_ERROR
        assert peer.ping()


def test_result_for_a_closed_loop_raises_nothing() -> None:
    def closed(_: object) -> None:
        raise RuntimeError("Event loop is closed")

    loop = SimpleNamespace(is_closed=lambda: False, call_soon_threadsafe=closed)
    RpcWorkers(loop, 1).run_on_loop(lambda: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.ENHANCE_YOUR_CALM, Status.UNAVAILABLE),  # too many requests now, not a limit of the message
        (Code.REFUSED_STREAM, Status.UNAVAILABLE),
        (Code.CANCEL, Status.CANCELLED),
        (Code.INTERNAL_ERROR, Status.INTERNAL),
    ],
)
def test_reset_by_the_server_becomes_a_status(code: Code, status: Status) -> None:
    connection = ClientConnection(Limits(), "x:1")
    exchange = connection.begin(encode_request_head(ECHO, "x", "http", gzip=False), bytes(5), None, holding=False)
    connection.feed(frames.encode_settings([]) + frames.encode_rst_stream(exchange.id, code))
    assert exchange.error is not None
    assert exchange.error.status is status


def test_huge_grpc_status_is_unknown() -> None:
    connection = ClientConnection(Limits(), "x:1")
    exchange = connection.begin(encode_request_head(ECHO, "x", "http", gzip=False), bytes(5), None, holding=False)
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", b"1" * 5000)]
    connection.feed(
        frames.encode_settings([]) + frames.encode_headers(exchange.id, headers.encode(fields), end_stream=True)
    )
    assert exchange.error is not None
    assert exchange.error.status is Status.UNKNOWN
