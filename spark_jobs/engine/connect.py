"""Sessions on a warm Spark Connect server; if it does not answer, a Binlake error is raised within half a minute.

pyspark's own client would stay silent for 10 to 17 minutes: it retries each call for ten, then the calls that fetch
details of the error, then those that clean up. It also waits forever for a server that accepts connections and hangs.
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

from binlake.common.installation import require_one_pyspark
from binlake.common.reachability import SPARK_TOKEN_ENV, build_spark_unavailable_error, require_spark
from binlake.errors import ConfigError

ANSWER_S = 15.0
"""Seconds in which a server must answer the first request of a session; a warm one needs 0.1."""
PATIENCE_S = 8.0
"""Seconds of an outage after which no call is retried, counted over all calls."""

_CHANNEL = [
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A host that vanished never closes the connection. Java's server treats pings less than 5 minutes apart as an
    # attack, so the loss is noticed after 5 and a half minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
]


class Patience(DefaultPolicy):
    """Retries until PATIENCE_S after the first failure of an outage, counted over all calls of a client."""

    def __init__(self) -> None:
        super().__init__(initial_backoff=200, backoff_multiplier=2.0, max_backoff=2000, max_server_retry_delay=2000)
        self._began = self._last = float("-inf")

    def can_retry(self, e: BaseException) -> bool:
        """As pyspark decides, but only until PATIENCE_S after the start of the outage."""
        if not super().can_retry(e):
            return False
        now = time.monotonic()
        if now - self._last > PATIENCE_S:
            # No call has failed for that long, so this is a new outage.
            self._began = now
        self._last = now
        return now - self._began < PATIENCE_S


def connect_session(remote: str) -> SparkSession:
    """A session on the Connect server at `remote` (`sc://host:port`), which was started with `session.CONF`.

    Raises Transient if the server does not answer, ConfigError if the URL or the installed pyspark is not valid.
    """
    require_one_pyspark()
    server = require_spark(remote)
    try:
        channel = DefaultChannelBuilder(_add_token(remote), list(_CHANNEL))
    except PySparkValueError as error:
        raise ConfigError(f"the URL of the Spark Connect server is not valid: {error}") from None
    # pyspark's own builder sets this too, but takes no channel options: functions then use the Connect server.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    session = ConnectSession.builder.channelBuilder(channel).getOrCreate()
    session.client.set_retry_policies([Patience()])
    _require_answer(session, server)
    return cast(SparkSession, session)


def _add_token(remote: str) -> str:
    token = os.environ.get(SPARK_TOKEN_ENV)
    return f"{remote.rstrip('/')}{';' if '/;' in remote else '/;'}token={token}" if token else remote


def _require_answer(session: ConnectSession, server: str) -> None:
    failed: list[Exception] = []

    def ask() -> None:
        try:
            assert session.version
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            failed.append(error)

    asking = threading.Thread(target=ask, name="binlake-connect", daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    if asking.is_alive():
        # Otherwise pyspark would ask the server to clean up when this process ends, and wait again.
        session.client.close()
        raise build_spark_unavailable_error(server)
    if failed:
        raise failed[0]
