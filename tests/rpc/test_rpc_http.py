"""Plain HTTP on the gRPC port, over HTTP/1.1 and HTTP/2, cleartext and TLS; which certificates may call."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from rpc_helpers import ECHO, STREAM, TestServer, raw, serving
from support.certificates import Authority

from binlake.errors import ConfigError, Permanent
from binlake.rpc import Channel, Limits, RpcError, Status, Tls, frames, headers


@pytest.fixture
def address() -> Iterator[str]:
    with serving() as (_, address):
        yield address


def connection(address: str) -> http.client.HTTPConnection:
    host, _, port = address.rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=60)


def test_pages_are_served_next_to_grpc_on_persistent_connections(address: str) -> None:
    client = connection(address)
    for _ in range(3):
        client.request("GET", "/a%20b?x=1&y=&x=2", headers={"X-One": "1"})
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (200, b"GET /a b {'x': '2', 'y': ''} 0\n")
    client.request("POST", "/post", body=b"z" * 70_000)
    assert client.getresponse().read() == b"POST /post {} 70000\n"
    client.request("PUT", "/chunks", body=iter([b"ab", b"c"]), encode_chunked=True)
    assert client.getresponse().read() == b"PUT /chunks {} 3\n"
    client.request("HEAD", "/head")
    answer = client.getresponse()
    assert (answer.read(), answer.headers["content-length"]) == (b"", "16")
    with Channel(address) as channel:
        assert channel.call(ECHO, b"x", 60) == b"x"


def test_page_sets_its_status_and_an_exception_is_a_500(address: str) -> None:
    client = connection(address)
    for path, status in [("/missing", 404), ("/broken", 500), ("/fine", 200)]:
        client.request("GET", path)
        answer = client.getresponse()
        answer.read()
        assert answer.status == status


def test_pipelined_requests_are_answered_in_order(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as plain:
        plain.sendall(b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(5)))
        data = b""
        while b"GET /4 " not in data:
            data += plain.recv(1 << 16)
        assert [data.index(b"GET /%d " % number) for number in range(5)] == sorted(
            data.index(b"GET /%d " % number) for number in range(5)
        )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 10_000 + b"\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + bytes(2_000_000), b"413"),
    ],
)
def test_too_large_requests_are_refused(address: str, data: bytes, status: bytes) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as plain:
        with contextlib.suppress(OSError):  # refused before everything was sent
            plain.sendall(data)
        assert plain.recv(1 << 16).startswith(b"HTTP/1.1 " + status)


def test_server_without_pages_answers_404() -> None:
    from binlake.rpc import RpcServer

    server = RpcServer()
    address = server.listen("127.0.0.1:0")
    server.start()
    client = connection(address)
    client.request("GET", "/status")
    assert client.getresponse().status == 404
    server.stop(0)


def test_port_in_use_is_one_clear_error(address: str) -> None:
    with pytest.raises(Permanent, match="cannot listen"):
        TestServer().listen(address)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def secure(authority: Authority) -> Iterator[str]:
    """A server that accepts the common names tidb and drainer."""
    server = TestServer()
    _, _, port = server.listen("127.0.0.1:0", authority.tls("pump", "tidb", "drainer")).rpartition(":")
    server.start()
    yield f"localhost:{port}"
    server.stop(0)


def test_allowed_common_names_can_call_over_tls(secure: str, authority: Authority) -> None:
    for name in ("tidb", "drainer"):
        with Channel(secure, tls=authority.tls(name)) as channel:
            assert channel.call(ECHO, b"x" * 1_000_000, 60) == b"x" * 1_000_000
            assert sum(map(len, channel.open_stream(STREAM, b"5000 1000").receive_batches())) == 5000


@pytest.mark.parametrize("name", ["stranger", None])
def test_other_or_missing_certificate_is_refused(secure: str, authority: Authority, name: str | None) -> None:
    tls = authority.tls(name) if name else Tls(authority.path)
    with Channel(secure, tls=tls) as channel, pytest.raises(RpcError) as caught:
        channel.call(ECHO, b"x", 60)
    assert caught.value.status is Status.UNAVAILABLE


def test_grpcio_and_browsers_use_the_same_tls_port(secure: str, authority: Authority) -> None:
    files = authority.tls("tidb")
    assert files.cert is not None
    assert files.key is not None
    credentials = grpc.ssl_channel_credentials(
        authority.path.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
    )
    with grpc.secure_channel(secure, credentials) as channel:
        assert channel.unary_unary(ECHO)(b"x", timeout=60) == b"x"
    context = files.build_client_context()
    context.set_alpn_protocols(["http/1.1"])
    host, _, port = secure.rpartition(":")
    client = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
    client.request("GET", "/page")
    assert client.getresponse().read() == b"GET /page {} 0\n"


def test_untrusted_server_is_an_error(secure: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with Channel(secure, tls=Authority(tmp_path / "other").tls("tidb")) as channel, pytest.raises(RpcError) as caught:
        channel.call(ECHO, b"x", 60)
    assert "TLS failed" in caught.value.message


def test_cleartext_client_on_a_tls_port_and_the_reverse_are_errors(
    secure: str, authority: Authority, address: str
) -> None:
    with Channel(secure) as channel, pytest.raises(RpcError):
        channel.call(ECHO, b"x", 60)
    port = address.rpartition(":")[2]
    with (
        Channel(f"localhost:{port}", tls=authority.tls("tidb")) as channel,
        pytest.raises(RpcError, match="TLS failed"),
    ):
        channel.call(ECHO, b"x", 60)


@pytest.mark.parametrize("tls", [Tls(), Tls(cert=Path("none"), key=Path("none")), Tls(allowed_cn=("x",))])
def test_unusable_tls_files_are_config_errors(tls: Tls) -> None:
    with pytest.raises(ConfigError):
        tls.build_server_context()


def test_alpn_offers_both_protocols(secure: str, authority: Authority) -> None:
    host, _, port = secure.rpartition(":")
    for offered in ("h2", "http/1.1"):
        context = authority.tls("tidb").build_client_context()
        context.set_alpn_protocols([offered])
        with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host) as plain:
            assert isinstance(plain, ssl.SSLSocket)
            assert plain.selected_alpn_protocol() == offered


def test_body_over_http2_has_a_limit_too() -> None:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/page")]
    with serving(Limits(http_body_bytes=1000)) as (_, address), raw(address) as peer:
        for stream_id, size, kind in [(1, 500, frames.HEADERS), (3, 5000, frames.RST_STREAM)]:
            peer.send(frames.encode_headers(stream_id, headers.encode(fields), end_stream=False))
            peer.send(frames.encode_frame(frames.DATA, 0, stream_id, bytes(size)))
            peer.send(frames.encode_frame(frames.DATA, frames.END_STREAM, stream_id))
            assert peer.until(kind, stream_id)
