"""TLS as in `[security]` of tidb-binlog 2.12: files, client certificates and their common names; ALPN on both sides."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from binlake.base.secrets import load_tls_files
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

    def build_server_context(self, protocols: Sequence[str] = ("h2", "http/1.1")) -> ssl.SSLContext:
        """The context of a server that speaks `protocols`. Raises ConfigError."""
        if self.cert is None or self.key is None:
            raise ConfigError("a TLS server needs ssl-cert and ssl-key")
        if self.allowed_cn and self.ca is None:
            raise ConfigError("cert-allowed-cn needs ssl-ca: without it no client certificate is checked")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(list(protocols))
        load_tls_files(context, self.ca, self.cert, self.key)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def build_client_context(self) -> ssl.SSLContext:
        """The context of a client for HTTP/2. Raises ConfigError."""
        return self._build_client_context("h2")

    def build_http_context(self) -> ssl.SSLContext:
        """The context of a client for HTTP/1.1. Raises ConfigError."""
        return self._build_client_context("http/1.1")

    def _build_client_context(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols([protocol])
        if self.ca is None:
            context.load_default_certs()
        load_tls_files(context, self.ca, self.cert, self.key)
        return context

    def allows(self, certificate: Mapping[str, object] | None) -> bool:
        """Whether a peer with this certificate (from `getpeercert`) may call."""
        return not self.allowed_cn or any(name in self.allowed_cn for name in _list_common_names(certificate or {}))


def _list_common_names(certificate: Mapping[str, object]) -> list[str]:
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    return [value for part in subject for name, value in part if name == "commonName"]
