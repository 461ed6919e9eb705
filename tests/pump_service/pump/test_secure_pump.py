"""A pump with `[security]`: RPC and pages by TLS only, for the names on the list; a Unix socket beside it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pump_cluster import CLUSTER_ID, MemoryCluster

from binlake.errors import ConfigError, SourceUnavailable
from binlake.pumpclient import PumpReader
from binlake.rpc import Channel
from pump_service.pump.config import PumpConfig, TlsFiles
from pump_service.pump.server import PumpServer

MakePump = Callable[..., PumpServer]


def certificates(folder: Path, *names: str) -> None:
    """`ca.pem`, and NAME.pem and NAME.key signed by it, for localhost."""
    pem, now = serialization.Encoding.PEM, datetime.datetime.now(datetime.UTC)
    authority = ec.generate_private_key(ec.SECP256R1())
    for name in ("ca", *names):
        key = authority if name == "ca" else ec.generate_private_key(ec.SECP256R1())
        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, "ca"))
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
        builder = builder.add_extension(x509.BasicConstraints(name == "ca", None), True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        (folder / f"{name}.pem").write_bytes(builder.sign(authority, hashes.SHA256()).public_bytes(pem))
        plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{name}.key").write_bytes(plain)


def files(folder: Path, name: str, *allowed: str) -> TlsFiles:
    return TlsFiles(str(folder / "ca.pem"), str(folder / f"{name}.pem"), str(folder / f"{name}.key"), allowed)


def test_a_secure_pump_serves_the_names_on_its_list(
    make_pump: MakePump, cluster: MemoryCluster, tmp_path: Path
) -> None:
    # tidb-binlog 1.5, 2.12
    certificates(tmp_path, "pump", "drainer", "stranger")
    socket = tmp_path / "pump.sock"
    tls = files(tmp_path, "pump", "pump", "drainer")
    pump = make_pump(addr="localhost:0", tls=tls, socket=str(socket))
    drainer = files(tmp_path, "drainer").rpc()
    reader = PumpReader(pump.addr, CLUSTER_ID, tls=drainer)
    assert reader.info().node_id == "pump1"
    assert next(reader.pull(0))[0] <= cluster.tso()
    assert drainer is not None
    assert httpx.get(f"https://{pump.addr}/status", verify=drainer.client_context()).status_code == 200
    for other in (files(tmp_path, "stranger").rpc(), None):
        with pytest.raises(SourceUnavailable):
            PumpReader(pump.addr, CLUSTER_ID, tls=other, timeout_s=1).info()
    with Channel(f"unix:{socket}") as channel:
        assert channel.call("/grpc.health.v1.Health/Check", b"", 10) == b"\x08\x01"
    pump.stop()
    again = make_pump(addr="localhost:0", tls=tls)  # finds its own entry, and nobody at the old address
    assert again.node_id == "pump1"


def test_what_grpcio_cannot_serve_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither TLS nor a Unix socket"):
        PumpConfig(rpc="grpcio", socket=str(tmp_path / "pump.sock"))
