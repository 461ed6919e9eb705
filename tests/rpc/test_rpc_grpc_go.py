"""Compatibility with grpc-go: byte streams recorded from grpc-go 1.59, which TiDB v7.5 uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from rpc_helpers import ECHO, STREAM, raw, serving

from binlake.rpc import RpcError, Status, frames, messages
from binlake.rpc.client_connection import ClientConnection, encode_request_head, read_unary_message
from binlake.rpc.limits import Limits

RECORDED = Path(__file__).parent / "recorded"
MESSAGE = bytes(number % 256 for number in range(300))


@pytest.mark.parametrize("piece", [1, 7, 10_000])
@pytest.mark.parametrize(("name", "calls"), [("unary", 3), ("gzip", 2)])
def test_recorded_client_is_answered(name: str, calls: int, piece: int) -> None:
    data = (RECORDED / f"grpc_go_client_{name}.bin").read_bytes()
    with serving() as (_, address), raw(address) as peer:
        # The preface and the first SETTINGS were sent by the helper: the recording brings its own.
        rest = data.removeprefix(frames.PREFACE)
        for at in range(0, len(rest), piece):
            peer.send(rest[at : at + piece])
        for stream_id in range(1, 2 * calls, 2):
            payload = peer.until(frames.DATA, stream_id)[3]
            flag, body = payload[0], payload[5:]
            assert messages.unpack(flag, body, gzip=True, max_bytes=1000) == MESSAGE
            assert peer.until(frames.HEADERS, stream_id)[1] & frames.END_STREAM


def client(method: str) -> tuple[ClientConnection, object]:
    connection = ClientConnection(Limits(), "recorded:1")
    head = encode_request_head(method, "recorded:1", "http", gzip=False)
    return connection, connection.begin(head, messages.encode_message(b"x"), None, holding=True)


@pytest.mark.parametrize("piece", [1, 13, 100_000])
@pytest.mark.parametrize(("name", "count"), [("stream", 20), ("gzip", 3)])
def test_recorded_server_is_understood(name: str, count: int, piece: int) -> None:
    data = (RECORDED / f"grpc_go_server_{name}.bin").read_bytes()
    connection, exchange = client(STREAM)
    found: list[bytes] = []
    for at in range(0, len(data), piece):
        connection.feed(data[at : at + piece])
        parts, exchange.parts = exchange.parts, []
        found += exchange.splitter.feed(parts)
    assert found == [bytes([number]) + bytes(199) for number in range(count)]
    assert exchange.done
    assert exchange.error is None


def test_recorded_failure_has_its_status_and_text() -> None:
    connection, exchange = client("/t.T/Fail")
    connection.feed((RECORDED / "grpc_go_server_fail.bin").read_bytes())
    assert isinstance(exchange.error, RpcError)
    assert (exchange.error.status, exchange.error.message) == (Status.UNKNOWN, "no: 100% ünwell\n")


def test_unary_answer_must_have_exactly_one_message() -> None:
    connection, exchange = client(ECHO)
    exchange.parts = [messages.encode_message(b"a") + messages.encode_message(b"b")]
    with pytest.raises(RpcError, match="2 messages"):
        read_unary_message(exchange)
    assert not connection.closed
