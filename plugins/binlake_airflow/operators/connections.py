"""Hands the Airflow connections that a replication's file names to the processes that use them.

A child process of a task cannot ask Airflow's secrets backends, so the task asks, and the child finds each connection
in its environment, where Airflow's own tools look too. No argument, XCom or log line has it. Airflow's own processes
(pages, tasks, the triggerer) look at lakes too: for them `find_connection` asks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from binlake.common.secrets import derive_variable, find_connections
from binlake.config import Replication
from binlake.errors import ConfigError

_KEEP_S = 60.0
_known: dict[str, tuple[float, str]] = {}
"""By id, until when (monotonic s) a connection is used without asking again, and its URI."""


def find_connection(conn_id: str) -> str | None:
    """The connection as a URI, at most a minute old; None if Airflow does not know it."""
    until, uri = _known.get(conn_id, (0.0, ""))
    if time.monotonic() >= until:
        try:
            uri = str(BaseHook.get_connection(conn_id).get_uri())
        except AirflowNotFoundException:
            return None
        _known[conn_id] = (time.monotonic() + _KEEP_S, uri)
    return uri


def read_connections(replication: Replication) -> dict[str, str]:
    """The environment with the connections that `replication` names. Raises ConfigError for one that is not defined."""
    return {derive_variable(name): _read(name) for name in list_connections(replication)}


async def fetch_connections(replication: Replication) -> dict[str, str]:
    """As `read_connections`, in the triggerer's loop; one that is not defined is left out: the task reports it.

    The triggerer's threads cannot ask, so `find_connection` returns these there until they are fetched again.
    """
    found = {}
    for name in list_connections(replication):
        try:
            uri = (await BaseHook.aget_connection(name)).get_uri()
        except AirflowNotFoundException:
            continue
        found[derive_variable(name)] = uri
        _known[name] = (math.inf, uri)
    return found


def list_connections(replication: Replication) -> Sequence[str]:
    """The ids that it names."""
    return find_connections(_list_texts(replication))


def _read(conn_id: str) -> str:
    try:
        return str(BaseHook.get_connection(conn_id).get_uri())
    except AirflowNotFoundException:
        raise ConfigError(
            "a password names an Airflow connection that is not defined",
            where={"connection": conn_id},
            hint="define it in Airflow or in its secrets backend",
        ) from None


def _list_texts(replication: Replication) -> Iterator[str]:
    for server in (replication.target, replication.source.sql, *replication.validation.source):
        if server is not None:
            yield from (server.user, server.password)
    for feed in replication.feed:
        yield from (feed.sink_uri, feed.schema_registry)
    yield replication.relay.log_dir
    yield replication.lake.storage.credentials
