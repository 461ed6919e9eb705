"""The connection to one pump: Unix socket, TLS, closing (tidb-binlog 1.5, 4)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.certificates import certificate, trust_another

from binlake.cluster.pumpclient import ClientOptions, PumpClient, WriteTimes
from binlake.cluster.pumpclient.transport import WriteRefusal, WriteRequest, build_rpc_connect
from binlake.errors import ConfigError, SourceUnavailable
from binlake.rpc import Channel, PendingCall, Tls
from binlake.wire import build, pump_pb2, pump_pb2_grpc

QUICK = WriteTimes(write_timeout=0.5, commit_timeout=0.5, retry_prewrite=0.01, retry_commit=0.05)
NODE = "local unix"
P = build.build_prewrite(1, b"k", b"\x08\x17")


class Taker(pump_pb2_grpc.PumpServicer):
    """Accepts all writes."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.gate: threading.Event | None = None

    def WriteBinlog(self, request: pump_pb2.WriteBinlogReq, context: grpc.ServicerContext) -> pump_pb2.WriteBinlogResp:
        del context
        if self.gate is not None:
            self.gate.wait(60)
        self.got.append(request.payload)
        return pump_pb2.WriteBinlogResp()


@pytest.fixture
def taker() -> Taker:
    return Taker()


@pytest.fixture
def server(taker: Taker) -> Iterator[grpc.Server]:
    server = grpc.server(ThreadPoolExecutor(2))
    pump_pb2_grpc.add_PumpServicer_to_server(taker, server)
    yield server
    server.stop(0).wait()


def test_local_pump_is_reached_through_its_socket_without_registry(
    short_path: Path, server: grpc.Server, taker: Taker
) -> None:
    socket = short_path / "pump.sock"
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    with PumpClient(None, 7, ClientOptions(socket=str(socket))) as client:
        node = client.write_prewrite(P)
        assert client.send_commit(build.build_commit(P, 2)) == node
        assert client.drain(60) == 0
    assert len(taker.got) == 2


def test_client_requires_a_registry_or_a_socket() -> None:
    with pytest.raises(ConfigError, match="registry or a socket"):
        PumpClient(None, 7)


def test_tls_authenticates_both_sides(tmp_path: Path, server: grpc.Server, taker: Taker) -> None:
    tls = certificate(tmp_path)
    cert, key = (tmp_path / "cert.pem").read_bytes(), (tmp_path / "key.pem").read_bytes()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)], cert, True))
    server.start()
    request = WriteRequest(7, (P.SerializeToString(),))
    another = trust_another(tls, tmp_path / "another")
    for right, options in ((True, tls), (False, None), (False, Tls(tls.ca)), (False, another)):
        connection = build_rpc_connect(options)(f"127.0.0.1:{port}")
        refused = connection.write(request, 60)
        connection.close()
        assert (refused is None) is right, refused
    assert len(taker.got) == 1


def test_unusable_tls_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.pem"):
        PumpClient(None, 7, ClientOptions(socket="/pump.sock", tls=Tls(tmp_path / "gone.pem")))


def test_closed_connection_returns_a_refusal_instead_of_raising() -> None:
    connection = build_rpc_connect()("127.0.0.1:1")
    connection.close()
    outcomes: list[WriteRefusal | None] = []
    connection.send(WriteRequest(0), 1.0, outcomes.append)
    outcomes.append(connection.write(WriteRequest(0), 1.0))
    assert all(refused is not None and "closed" in refused.text for refused in outcomes)
    assert len(outcomes) == 2


def test_closing_answers_pending_calls(server: grpc.Server, taker: Taker) -> None:
    gate = threading.Event()
    taker.gate = gate
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connection = build_rpc_connect()(f"127.0.0.1:{port}")
    outcomes: queue.SimpleQueue[WriteRefusal | None] = queue.SimpleQueue()
    for _ in range(200):
        connection.send(WriteRequest(0), 120, outcomes.put)
    connection.close()
    gate.set()
    answers = [outcomes.get(timeout=60) for _ in range(200)]
    assert all(answer is not None for answer in answers)


def test_refused_connection_is_reported_with_the_address() -> None:
    options = ClientOptions(socket="/nonexistent/pump.sock", times=QUICK)
    with PumpClient(None, 7, options) as client, pytest.raises(SourceUnavailable, match="local unix"):
        client.write_prewrite(P)


def test_unexpected_error_fails_only_one_call(server: grpc.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connection = build_rpc_connect()(f"127.0.0.1:{port}")
    outcomes: queue.SimpleQueue[WriteRefusal | None] = queue.SimpleQueue()

    def unforeseen(*_: object) -> bytes:
        raise ValueError("unforeseen")

    for place in (Channel, PendingCall):
        with monkeypatch.context() as broken:
            broken.setattr(place, "start" if place is Channel else "await_result", unforeseen)
            connection.send(WriteRequest(0), 60, outcomes.put)
            assert outcomes.get(timeout=60) == WriteRefusal("ValueError: unforeseen")
    connection.send(WriteRequest(0), 60, outcomes.put)
    assert outcomes.get(timeout=60) is None
    connection.close()


def test_only_a_message_above_a_limit_counts_as_too_large(
    server: grpc.Server, taker: Taker, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "too many calls at once"

    def exhausted(_: object, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    monkeypatch.setattr(taker, "WriteBinlog", exhausted)
    pump_pb2_grpc.add_PumpServicer_to_server(taker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connection = build_rpc_connect()(f"127.0.0.1:{port}")
    first = connection.write(WriteRequest(0), 60)
    text = "grpc: received message larger than max (5 vs. 4)"
    second = connection.write(WriteRequest(0), 60)
    connection.close()
    assert [refused is not None and refused.too_large for refused in (first, second)] == [False, True]


def test_unix_socket_uses_no_tls_even_if_pumps_of_the_registry_do(short_path: Path, server: grpc.Server) -> None:
    server.add_insecure_port(f"unix:{short_path}/pump.sock")
    server.start()
    connection = build_rpc_connect(certificate(short_path))(f"unix:{short_path}/pump.sock")
    assert connection.write(WriteRequest(0), 60) is None
    connection.close()


@pytest.mark.parametrize("write", ["write_prewrite", "write_commit"])
def test_closing_the_client_ends_retries(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ClientOptions(socket="/nonexistent/pump.sock", times=WriteTimes(retry_prewrite=600, retry_commit=600))
    client = PumpClient(None, 7, options)
    failures: list[SourceUnavailable] = []
    tried, attempt = threading.Event(), client._try

    def trying(*args: Any) -> Any:
        tried.set()
        return attempt(*args)

    monkeypatch.setattr(client, "_try", trying)

    def call() -> None:
        try:
            client.write_prewrite(P) if write == "write_prewrite" else client.write_commit(
                build.build_commit(P, 2), NODE
            )
        except SourceUnavailable as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert tried.wait(60)
    client.close()
    thread.join(60)
    assert [error.message for error in failures] == ["the client was closed"]


def test_a_large_payload_is_sent_without_a_copy() -> None:  # U-06
    value = bytes(range(256)) * 8000
    ddl = build.build_prewrite(5, b"k", value, ddl_query=b"create", ddl_job_id=3, ddl_schema_state=5)
    odd = type(P).FromString(build.build_prewrite(5, b"k", value).SerializeToString() + b"\xa8\x06\x01")
    for binlog, count in ((P, 1), (build.build_prewrite(5, b"k", value), 4), (ddl, 4), (odd, 2)):
        message = WriteRequest(7, build.serialize_in_pieces(binlog)).build_message()
        whole = message if isinstance(message, bytes) else b"".join(message)
        payload = binlog.SerializeToString()
        assert whole == pump_pb2.WriteBinlogReq(clusterID=7, payload=payload).SerializeToString()
        assert count == (len(message) if isinstance(message, tuple) else 1)
