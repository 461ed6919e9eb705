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

from binlake.config.sinkuri import KafkaConnection as Brokers
from binlake.config.sinkuri import parse_sink_uri
from binlake.errors import BinlakeError, ConfigError, Transient
from binlake.feed import kafka as kafka_module
from binlake.feed import registry as registry_module
from binlake.feed.kafka import KafkaPublisher
from binlake.feed.messages import MESSAGE_SCHEMA
from binlake.feed.position import ChangePosition
from binlake.feed.registry import SchemaRegistry
from deploy.local.kafka import KafkaBroker
from deploy.local.ports import free_ports

PASSWORD = "p w:@%"
MECHANISMS = ("PLAIN", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Secured(KafkaBroker):
    """A broker with two more ports: TLS with a client certificate, and TLS with a password."""

    def __init__(self, authority: Authority) -> None:
        self.tls_port, self.sasl_port = free_ports(2)
        tls = authority.tls("broker")
        store = authority.folder / "broker.store.pem"
        store.write_bytes(Path(tls.key).read_bytes() + Path(tls.cert).read_bytes())
        plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{PASSWORD}";'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        self.more = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.path),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.password.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.password.plain.sasl.jaas.config": plain,
            "listener.name.password.scram-sha-512.sasl.jaas.config": scram,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MUTUAL:SSL,PASSWORD:SASL_SSL",
        }
        super().__init__(users={"ann": PASSWORD})

    def _build_settings(self) -> dict[str, str]:
        usual = super()._build_settings()
        own = f"MUTUAL://localhost:{self.tls_port},PASSWORD://localhost:{self.sasl_port}"
        ports = {name: f"{usual[name]},{own}" for name in ("listeners", "advertised.listeners")}
        return usual | self.more | ports


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[Secured]:
    with Secured(authority) as server:
        yield server


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
def test_password_is_sent_over_tls(secured: Secured, authority: Authority, mechanism: str, tmp_path: Path) -> None:
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


def test_client_presents_its_certificate(secured: Secured, authority: Authority) -> None:
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
