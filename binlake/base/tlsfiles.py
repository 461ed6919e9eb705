"""PEM files in a context of TLS: files that cannot be used are an error of the configuration."""

from __future__ import annotations

import ssl
from pathlib import Path

from binlake.errors import ConfigError


def load_tls_files(context: ssl.SSLContext, ca: Path | None, cert: Path | None, key: Path | None) -> None:
    """Let `context` trust `ca`, show `cert`, and speak TLS 1.2 or newer. Raises ConfigError."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca is not None:
            context.load_verify_locations(ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        where = {"ssl-ca": ca, "ssl-cert": cert, "ssl-key": key, "reason": error}
        raise ConfigError("the TLS files cannot be used", where=where) from None
