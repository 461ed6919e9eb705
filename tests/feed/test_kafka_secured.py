"""Kafka and registry with TLS and passwords: the sink URI's parameters reach a real broker, wrong ones are named."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from support.certificates import Authority, trust_another
from support.examples import spread
from support.securedkafka import MECHANISMS, PASSWORD, SecuredKafka

from binlake.config.sinkuri import KafkaConnection as Brokers
from binlake.config.sinkuri import parse_sink_uri
from binlake.errors import BinlakeError, ConfigError, Transient
from binlake.feed import kafka as kafka_module
from binlake.feed import registry as registry_module
from binlake.feed.kafka import KafkaPublisher
from binlake.feed.manifest import ChangePosition
from binlake.feed.messages import MESSAGE_SCHEMA
from binlake.feed.registry import SchemaRegistry


@pytest.fixture
def secured(kafka: SecuredKafka) -> SecuredKafka:
    """The session's broker by its secured ports."""
    return kafka


def publish(brokers: Brokers, topic: str) -> None:
    row = {"db": "d", "table": "t", "topic": topic, "commit_ts": 1, "hash": 0, "key": b"k", "value": b"v"}
    with KafkaPublisher(brokers, topic) as publisher:
        publisher.publish(pa.Table.from_pylist([row], MESSAGE_SCHEMA), ChangePosition(1, 0, 0))
    with KafkaPublisher(brokers, topic) as publisher:
        assert publisher.position == ChangePosition(1, 0, 0)


def brokers(text: str) -> Brokers:
    kafka = parse_sink_uri(text).kafka
    assert kafka is not None
    return kafka


# S2-05, S2-06
@pytest.mark.parametrize("mechanism", spread(MECHANISMS, least=1))
def test_password_is_sent_over_tls(secured: SecuredKafka, authority: Authority, mechanism: str, tmp_path: Path) -> None:
    uri = (
        f"kafka+ssl://localhost:{secured.sasl_port}/t?protocol=avro&ca={authority.path}"
        f"&sasl-mechanism={mechanism.lower()}&sasl-user=ann&sasl-password=p%20w%3A%40%25"
    )
    publish(brokers(uri), f"by-{mechanism}")
    right, another = brokers(uri), trust_another(authority.tls("ann"), tmp_path / "another")
    for wrong in (replace(right, sasl_password="other"), replace(right, ca=str(another.ca))):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kafka_module, "TIMEOUT_S", 3.0)
            with pytest.raises(BinlakeError) as raised:
                publish(wrong, "never")
        assert "other" not in str(raised.value)


def test_client_presents_its_certificate(secured: SecuredKafka, authority: Authority) -> None:
    tls = authority.tls("client")
    uri = f"kafka://localhost:{secured.tls_port}/t?protocol=avro&enable-tls=true&ca={authority.path}"
    publish(brokers(f"{uri}&cert={tls.cert}&key={tls.key}"), "by-certificate")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kafka_module, "TIMEOUT_S", 3.0)
        with pytest.raises(BinlakeError):
            publish(brokers(uri), "never")


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        user = b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        content = json.dumps({"id": 3} if user == f"ann:{PASSWORD}" else {"message": "who are you"}).encode()
        self.send_response(200 if user == f"ann:{PASSWORD}" else 401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def https(authority: Authority) -> Iterator[int]:
    tls = authority.tls("registry")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.cert, tls.key)
    server = ThreadingHTTPServer(("localhost", 0), _Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


# S2-06, S2-44
def test_https_registry_accepts_an_encoded_password(
    https: int, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_TRIES", 1)
    host = f"localhost:{https}"
    another = trust_another(authority.tls("ann"), tmp_path / "another")
    with SchemaRegistry(f"https://ann:p%20w%3A%40%25@{host}?ca={authority.path}") as registry:
        assert registry.register_schema("t-value", '"int"') == 3
        assert registry.shown == f"https://{host}"
    for ca in ("", f"?ca={another.ca}"):
        with (
            SchemaRegistry(f"https://ann:p%20w%3A%40%25@{host}{ca}") as registry,
            pytest.raises(Transient, match="certificate"),
        ):
            registry.register_schema("t-value", '"int"')


def test_certificate_files_of_a_registry_url_are_checked(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        SchemaRegistry("https://h?ca=/nowhere/ca.pem")
    with pytest.raises(ConfigError, match="caa"):
        SchemaRegistry(f"https://h?caa={authority.path}")
