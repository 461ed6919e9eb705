"""Connections to servers with MySQL's protocol: TLS if the server offers it, with one context per process, and
sessions without the server's global settings (`sqlsession`).

pymysql creates a context for each connection, which reads all certificates of the system: 22 ms of CPU (measured).
"""

from __future__ import annotations

import codecs
import ssl
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pymysql
from pymysql.constants import CR

from binlake.base.sections.security import SqlSecurity
from binlake.base.sqlsession import set_variables
from binlake.base.tlsfiles import load_tls_files

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts that need no TLS: nobody can intercept local connections."""


_BYTES_TOO = "utf8-and-bytes"


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name != _BYTES_TOO.replace("-", "_"):
        return None
    return codecs.CodecInfo(
        name=_BYTES_TOO,
        encode=lambda text, _="": codecs.utf_8_encode(text, "surrogateescape"),
        decode=lambda data, _="": codecs.utf_8_decode(data, "surrogateescape", True),
    )


codecs.register(_find_codec)


def show_bytes_too(link: pymysql.Connection[Any]) -> None:
    """Let `link` show bytes that are not UTF-8 as lone surrogates, where it would fail: MariaDB has them in SHOW
    CREATE TABLE."""
    link.encoding = _BYTES_TOO


def build_tls_arguments(security: SqlSecurity, *, plain_at: str = "") -> dict[str, Any]:
    """The arguments of a `SqlLink` for `security`. Raises ConfigError.

    `plain_at`: the server's host, if without any setting a host of `LOOPBACK` shall get no TLS, which costs CPU.
    """
    if security.mode == "preferred":
        return {"ssl_disabled": True} if plain_at in LOOPBACK and not security.ssl_mode else {}
    if security.mode == "disabled":
        return {"ssl_disabled": True}
    return {"ssl": _trust_system() if security.mode == "verify-identity" and not any(security.list_files())
            else _build_context(security)}  # fmt: skip


def is_tls_refusal(error: BaseException) -> bool:
    """Whether pymysql's `error` means that one side does not accept the other's TLS: trying again does not help."""
    cause = getattr(error, "original_exception", None)
    return isinstance(cause, ssl.SSLCertVerificationError) or error.args[:1] == (CR.CR_SSL_CONNECTION_ERROR,)


@cache
def _trust_system() -> ssl.SSLContext:
    return _build_context(SqlSecurity(ssl_mode="verify-identity"))


def _build_context(security: SqlSecurity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = security.mode == "verify-identity"
    context.verify_mode = ssl.CERT_REQUIRED if security.checks_certificate else ssl.CERT_NONE
    if security.checks_certificate and not security.ssl_ca:
        context.load_default_certs()
    load_tls_files(context, *(Path(file) if file else None for file in security.list_files()))
    return context


class SqlLink(pymysql.Connection):
    """A `pymysql.Connection` with its arguments; a context that is passed as `ssl` is used unchanged."""

    _context: ClassVar[ssl.SSLContext | None] = None

    def connect(self, sock: Any = None) -> None:
        """As pymysql does, then set the session's variables."""
        super().connect(sock)
        try:
            set_variables(self)
        except BaseException:
            self._force_close()  # type: ignore[attr-defined]
            raise

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if sslp:
            return super()._create_ssl_ctx(sslp)  # type: ignore[no-any-return,misc]
        if SqlLink._context is None:
            SqlLink._context = super()._create_ssl_ctx(sslp)  # type: ignore[misc]
        return SqlLink._context
