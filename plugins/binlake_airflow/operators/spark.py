"""Where a task finds Spark: a master or a Connect server, its environment, and the sessions that tries share.

Spark keeps Python workers for each session of a Connect server: a session for each task would start them each time,
several seconds a window. So the tries of one stage of a replication share a session for half an hour, within the
server's idle limit of an hour, after which an id is dead. If a client is killed, its job goes on running on the server
and occupies the cores (stack facts, "Connect server"). The next try computes the same ids and interrupts that job. Only
one try of a stage runs at a time.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from binlake.common.reachability import SPARK_TOKEN_ENV, require_spark
from binlake.errors import ConfigError
from binlake_airflow.jobs import MODULE

DRIVER_MEMORY_ENV = "BINLAKE_DRIVER_MEMORY"


def find_spark_master(conn_id: str) -> str:
    """The master of a connection of type `spark`. Raises ConfigError."""
    return str(get_connection(conn_id, "a Spark master").host or "")


def find_connect_url(conn_id: str) -> str:
    """The URL of a connection of type `spark_connect`. Raises ConfigError."""
    get_connection(conn_id, "a Spark Connect server")
    return str(SparkConnectHook(conn_id).get_connection_url())


def find_application_file() -> str:
    """The file of `binlake.spark_jobs.commands.main`, found without importing it. Raises ConfigError."""
    spec = find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ConfigError(f"module {MODULE} is not installed", hint="install binlake where the tasks run")
    return spec.origin


def get_connection(conn_id: str, what: str) -> Any:
    """The Airflow connection `conn_id`. Raises ConfigError."""
    # The provider's hook would silently take a missing connection for `yarn`.
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise ConfigError(
            "the Airflow connection is not defined",
            where={"spark_conn_id": conn_id},
            hint=f"define it as {what}, or set AIRFLOW_CONN_{conn_id.upper()}",
        ) from None


def build_driver_env(local: bool) -> dict[str, str]:
    """The environment that spark-submit needs; `local`: the master runs in its own process."""
    python = {name: os.environ.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    # Add the interpreter's folder, so that its spark-submit is found even if the virtual environment is not activated.
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    address = {"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")} if local else {}
    return {"PATH": path, **python, **address}


SPAN_S = 1800
_GONE = ("INVALID_HANDLE.SESSION_NOT_FOUND", "INVALID_HANDLE.SESSION_CLOSED")


def derive_session_id(replication: str, stage: str, at_s: float) -> str:
    """The id of the session of this stage at `at_s` (Unix seconds): a UUID made from its arguments."""
    name = "\x00".join((replication, stage, str(int(at_s) // SPAN_S)))
    return str(uuid.UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=4))


def list_sessions_between(replication: str, stage: str, since_s: float, until_s: float) -> list[str]:
    """The ids of all sessions that this stage may have had from `since_s` to `until_s` (Unix seconds)."""
    spans = range(int(since_s) // SPAN_S, int(until_s) // SPAN_S + 1)
    return [derive_session_id(replication, stage, span * SPAN_S) for span in spans]


def add_session(url: str, session: str) -> str:
    """The Connect URL `url` (`sc://host:port/;key=value`) with the session id `session`."""
    base, _, params = url.partition("/;")
    others = [part for part in params.split(";") if part and not part.startswith("session_id=")]
    return f"{base.rstrip('/')}/;{';'.join([*others, f'session_id={session}'])}"


def split_token(url: str) -> tuple[str, dict[str, str]]:
    """The Connect URL `url` without its token, and the environment in which a child process finds it."""
    base, _, params = url.partition("/;")
    tokens = [part for part in params.split(";") if part.startswith("token=")]
    others = [part for part in params.split(";") if part and part not in tokens]
    shown = f"{base}/;{';'.join(others)}" if others else base
    return (shown, {SPARK_TOKEN_ENV: tokens[0].removeprefix("token=")}) if tokens else (url, {})


def interrupt(url: str, log: Callable[[str], None]) -> None:
    """Interrupt the work in the session of `url` (which contains its id); an unknown session is not an error.

    If the server cannot be reached, this is only logged: the next call fails with a better message.
    """
    # Imported here: parsing a DAG file must not load pyspark.
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import SparkConnectClient

    client = SparkConnectClient(connection=url, retry_policy={"max_retries": 1, "max_backoff": 1000})
    try:
        client.interrupt_all()
    except PySparkException as error:
        if error.getCondition() not in _GONE:
            log(f"the work of the Spark Connect session could not be interrupted: {error}")
    finally:
        client.close()


class ConnectSessions:
    """The sessions of one stage or command (`stage`) of a replication on the server at `url`; `log` gets warnings."""

    def __init__(self, url: str, replication: str, stage: str, log: Callable[[str], None]) -> None:
        self._url, self._replication, self._stage, self._log = url, replication, stage, log
        self._opened: str | None = None

    def open(self, try_number: int, began_s: float) -> str:
        """The URL with the session of this try; a retry first ends work that tries since `began_s` left running.

        Raises Transient if no server listens there: otherwise each later call would fail separately.
        """
        require_spark(self._url)
        now = time.time()
        if try_number > 1:
            for session in list_sessions_between(self._replication, self._stage, began_s, now):
                interrupt(add_session(self._url, session), self._log)
        self._opened = add_session(self._url, derive_session_id(self._replication, self._stage, now))
        return self._opened

    def end(self) -> None:
        """End the work in the opened session, if there is one."""
        if self._opened is not None:
            interrupt(self._opened, self._log)
