"""Connections to servers with MySQL's protocol: TLS if the server offers it, with one context per process, and
sessions without the server's global settings (`sqlsession`).

pymysql creates a context for each connection, which reads all certificates of the system: 22 ms of CPU (measured).
"""

from __future__ import annotations

import codecs
import ssl
from typing import Any, ClassVar

import pymysql

from binlake.base.sqlsession import set_variables

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
