"""Certificates for tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from binlake.rpc import Tls


def certificate(folder: Path) -> Tls:
    """A self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "binlake")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return Tls(folder / "cert.pem", folder / "cert.pem", folder / "key.pem")


def trust_another(tls: Tls, folder: Path) -> Tls:
    """`tls` of somebody whose certificate every server accepts, and who trusts another authority himself."""
    folder.mkdir()
    return Tls(Authority(folder).path, tls.cert, tls.key)


class Authority:
    """A certificate authority whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.cert = self._sign("authority", self.key, ca=True)
        self.path = folder / "ca.pem"
        self.path.write_bytes(self.cert.public_bytes(serialization.Encoding.PEM))

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        builder = x509.CertificateBuilder(issuer, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        builder = builder.add_extension(names, False).add_extension(x509.BasicConstraints(ca, None), True)
        return builder.sign(self.key, hashes.SHA256())

    def tls(self, name: str, *allowed_cn: str) -> Tls:
        """The files of a certificate for `name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert, private = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(self._sign(name, key).public_bytes(serialization.Encoding.PEM))
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        return Tls(self.path, cert, private, allowed_cn)
