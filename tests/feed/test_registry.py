"""The registry's client against a real HTTP server that records requests (MISSION S2-06, S2-38, S2-41, S2-44)."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from binlake.errors import ConfigError, Permanent, Transient
from binlake.feed.registry import MEDIA_TYPE, SchemaRefused, SchemaRegistry, encode_header


class Recorded(ThreadingHTTPServer):
    """Answers from the list `answers` (status, JSON), then with ids 1, 2, ... for each schema."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, Any, dict[str, str]]] = []
        self.answers: list[tuple[int, Any]] = []
        self.ids: dict[str, int] = {}

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if self.answers:
            return self.answers.pop(0)
        if body is None:
            return 200, {}
        return 200, {"id": self.ids.setdefault(path + body["schema"], len(self.ids) + 1)}


class _Handler(BaseHTTPRequestHandler):
    server: Recorded

    def do_GET(self) -> None:
        self._reply()

    def do_POST(self) -> None:
        self._reply()

    def _reply(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        self.server.requests.append((self.command, self.path, body, dict(self.headers)))
        status, answer = self.server.answer(self.path, body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Recorded]:
    server = Recorded()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


# S2-44
def test_requests_follow_the_protocol(server: Recorded) -> None:
    with SchemaRegistry(f"http://{server.host}") as registry:
        registry.require_answer()
        assert registry.register_schema("a_b-value", '"string"') == 1
        assert registry.register_schema("a_b-value", '"string"') == 1
        assert registry.register_schema("a_b-value", '"int"') == 2
    asked = [(method, path, body) for method, path, body, _ in server.requests]
    assert asked == [
        ("GET", "/", None),
        ("POST", "/subjects/a_b-value/versions", {"schema": '"string"'}),
        ("POST", "/subjects/a_b-value/versions", {"schema": '"int"'}),
    ]
    headers = server.requests[1][3]
    assert (headers["Content-Type"], headers["Accept"]) == (MEDIA_TYPE, MEDIA_TYPE)


def test_schema_is_read_by_its_id(server: Recorded) -> None:
    server.answers = [(200, {"schema": '"long"'})]
    with SchemaRegistry(f"http://{server.host}") as registry:
        assert registry.fetch_schema(7) == '"long"'
    assert server.requests[0][:2] == ("GET", "/schemas/ids/7")


# S2-13, reference/data-migration-and-ticdc.md 6.12
def test_header_is_a_zero_and_four_bytes() -> None:
    assert encode_header(1) == bytes.fromhex("0000000001")
    assert encode_header(0x01020304) == bytes.fromhex("0001020304")


# S2-38
def test_incompatible_schema_is_refused_with_the_registrys_message(server: Recorded) -> None:
    server.answers = [(409, {"error_code": 409, "message": "Schema being registered is incompatible"})]
    with (
        SchemaRegistry(f"http://{server.host}") as registry,
        pytest.raises(SchemaRefused, match="Schema being registered is incompatible"),
    ):
        registry.register_schema("t-value", '"int"')
    assert len(server.requests) == 1


def test_busy_registry_is_asked_again(server: Recorded) -> None:
    server.answers = [(503, {"message": "leader unknown"}), (429, {}), (200, {"id": 5})]
    with SchemaRegistry(f"http://{server.host}") as registry:
        assert registry.register_schema("t-value", '"int"') == 5


def test_unreachable_registry_is_a_transient_error(server: Recorded) -> None:
    server.answers = [(500, {"message": "store failed"})] * 9
    with SchemaRegistry(f"http://{server.host}") as registry, pytest.raises(Transient, match="store failed"):
        registry.register_schema("t-value", '"int"')
    with SchemaRegistry("http://127.0.0.1:9") as registry, pytest.raises(Transient, match="does not answer"):
        registry.require_answer()


def test_answer_without_an_id_is_an_error(server: Recorded) -> None:
    server.answers = [(200, {"id": 0})]
    with SchemaRegistry(f"http://{server.host}") as registry, pytest.raises(Permanent, match="no id"):
        registry.register_schema("t-value", '"int"')


# S2-06
def test_credentials_are_decoded_and_never_shown(server: Recorded) -> None:
    server.answers = [(200, {}), (401, {"message": "bad credentials"})]
    with SchemaRegistry(f"http://user:p%40ss%3Aw@{server.host}") as registry:
        registry.require_answer()
        with pytest.raises(Permanent, match="bad credentials") as raised:
            registry.require_answer()
    scheme, _, token = server.requests[0][3]["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(token)) == ("Basic", b"user:p@ss:w")
    assert "p@ss" not in str(raised.value)
    assert "p%40ss" not in str(raised.value)


# S2-06
@pytest.mark.parametrize("url", ["https://user:p@ss@host", "https://user:a:b@host", "ftp://host", "host:8081"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        SchemaRegistry(url)
