"""Sessions on a warm Spark Connect server; one that does not answer is a Binlake error within half a minute.

pyspark's own client is silent for 10 to 17 minutes: it tries each call for ten, then others that it makes for the
error's sake, then those that clean up. And it waits without an end for a server that accepts and hangs.
"""

from __future__ import annotations

import os
import threading
import time
from typing import cast

from pyspark.errors import PySparkValueError
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from binlake.base.reachability import require_spark, spark_unavailable
from binlake.errors import ConfigError

ANSWER_S = 15.0
"""Seconds in which a server must answer the first question of a session; a warm one needs 0.1."""
PATIENCE_S = 8.0
"""Seconds of an outage, whatever calls fall into it, after which nothing is tried again."""

_CHANNEL = [
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A host that vanished sends no end of the connection. Java's server takes pings less than 5 minutes apart for an
    # attack, so it is noticed after 5 minutes and a half.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
]


class Patience(DefaultPolicy):
    """Tries again for PATIENCE_S since the first failure of an outage, over all calls of a client together."""

    def __init__(self) -> None:
        super().__init__(initial_backoff=200, backoff_multiplier=2.0, max_backoff=2000, max_server_retry_delay=2000)
        self._began = self._last = float("-inf")

    def can_retry(self, e: BaseException) -> bool:
        """As pyspark decides, while the outage is young."""
        if not super().can_retry(e):
            return False
        now = time.monotonic()
        if now - self._last > PATIENCE_S:
            # Nothing failed for so long: another outage.
            self._began = now
        self._last = now
        return now - self._began < PATIENCE_S


def connect_session(remote: str) -> SparkSession:
    """A session on the Connect server at `remote` (`sc://host:port`), which was started with `session.CONF`.

    Raises Transient when the server does not answer, ConfigError for a URL that is none.
    """
    server = require_spark(remote)
    try:
        channel = DefaultChannelBuilder(remote, list(_CHANNEL))
    except PySparkValueError as error:
        raise ConfigError(f"the URL of the Spark Connect server is not valid: {error}") from None
    # As pyspark's own builder does, which takes no options of a channel: functions then speak to the server.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    session = ConnectSession.builder.channelBuilder(channel).getOrCreate()
    session.client.set_retry_policies([Patience()])
    _require_answer(session, server)
    return cast(SparkSession, session)


def _require_answer(session: ConnectSession, server: str) -> None:
    failed: list[Exception] = []

    def ask() -> None:
        try:
            assert session.version
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            failed.append(error)

    asking = threading.Thread(target=ask, name="binlake-connect", daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    if asking.is_alive():
        # Else pyspark asks it to clean up when this process ends, and waits again.
        session.client.close()
        raise spark_unavailable(server)
    if failed:
        raise failed[0]
