"""TLS as in `[security]` of tidb-binlog 2.12: files, client certificates and their common names; ALPN on both sides."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from binlake.errors import ConfigError


@dataclass(frozen=True)
class Tls:
    """The PEM files of one `[security]` block, the same on both sides.

    With `ca`, a server requires a client certificate, and a client verifies the server by it (else by the system's).
    `allowed_cn`: the common names that a client certificate may have; empty = any.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    allowed_cn: tuple[str, ...] = ()

    @classmethod
    def of(cls, ca: str, cert: str, key: str, allowed_cn: tuple[str, ...] = ()) -> Tls | None:
        """From file names, empty = none; None if all three are empty."""
        if not (ca or cert or key):
            return None
        files = {"ca": ca, "cert": cert, "key": key}
        return cls(**{name: Path(file) for name, file in files.items() if file}, allowed_cn=allowed_cn)

    def make_server_context(self) -> ssl.SSLContext:
        """The context of a server for HTTP/2 and HTTP/1.1. Raises ConfigError."""
        if self.cert is None or self.key is None:
            raise ConfigError("a TLS server needs ssl-cert and ssl-key")
        if self.allowed_cn and self.ca is None:
            raise ConfigError("cert-allowed-cn needs ssl-ca: without it no client certificate is checked")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2", "http/1.1"])
        self._load(context)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def make_client_context(self) -> ssl.SSLContext:
        """The context of a client for HTTP/2. Raises ConfigError."""
        return self._make_client_context("h2")

    def make_http_context(self) -> ssl.SSLContext:
        """The context of a client for HTTP/1.1. Raises ConfigError."""
        return self._make_client_context("http/1.1")

    def _make_client_context(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols([protocol])
        if self.ca is None:
            context.load_default_certs()
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            where = {"ssl-ca": self.ca, "ssl-cert": self.cert, "ssl-key": self.key, "reason": error}
            raise ConfigError("the TLS files cannot be used", where=where) from None

    def allows(self, certificate: Mapping[str, object] | None) -> bool:
        """Whether a peer with this certificate (from `getpeercert`) may call."""
        return not self.allowed_cn or any(name in self.allowed_cn for name in _list_common_names(certificate or {}))


def _list_common_names(certificate: Mapping[str, object]) -> list[str]:
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    return [value for part in subject for name, value in part if name == "commonName"]
