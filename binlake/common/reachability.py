"""Asks what may not answer: whether a server listens at an address; and work that may hang, in a thread of its own.

A TCP connection within a deadline proves that a process listens, not that it works; no password is needed. Work that
hangs (a lost file system, a silent server) stays in its daemon thread, and its caller stops waiting.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar
from urllib.parse import urlsplit

from binlake.errors import ConfigError, Transient

REACH_S = 5.0
"""Seconds within which a Spark Connect server must accept a connection."""
CONNECT_PORT = 15002
"""Spark Connect's default port."""


def is_listening(host: str, port: int, timeout_s: float) -> bool:
    """Whether a connection to `host`:`port` is accepted within `timeout_s` seconds (plus resolving the name)."""
    try:
        with socket.create_connection((host, port), timeout_s):
            return True
    except (OSError, UnicodeError, OverflowError):
        # The last two: an impossible host or port.
        return False


def parse_address(url: str, default_port: int) -> tuple[str, int]:
    """(host, port) of a URL such as `sc://host:port/;key=value`, or of a plain `host:port`.

    Raises ValueError for a port that is not a number.
    """
    parts = urlsplit(url if "://" in url else f"//{url}")
    return parts.hostname or "", parts.port or default_port


SPARK_TOKEN_ENV = "BINLAKE_SPARK_TOKEN"
"""The environment variable with a Connect server's token, as in its URL: everyone may read a process's arguments."""


def require_spark(remote: str) -> str:
    """The `host:port` of the Spark Connect server `remote` (`sc://host:port`), if a server listens there.

    Raises Transient if none does, ConfigError for an invalid URL.
    """
    try:
        host, port = parse_address(remote, CONNECT_PORT)
    except ValueError as error:
        raise ConfigError(f"the URL of the Spark Connect server is not valid: {error}") from None
    if not is_listening(host, port, REACH_S):
        raise build_spark_unavailable_error(f"{host}:{port}")
    return f"{host}:{port}"


def build_spark_unavailable_error(server: str = "", why: str = "does not answer") -> Transient:
    """The error for a Connect server (`host:port`, if known) that does not answer, or no longer answers."""
    return Transient(
        f"the Spark Connect server {why}",
        where={"server": server} if server else None,
        hint="restart it and see its log; then run the stage again: it first checks what has been done",
    )


Result = TypeVar("Result")


def begin_in_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """Start `work`; its result or exception is in the future. The process may end while it still hangs."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
