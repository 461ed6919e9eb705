"""Hands the Airflow connections that a replication's file names to the processes that use them.

A child process of a task cannot ask Airflow's secrets backends, so the task asks, and the child finds each connection
in its environment, where Airflow's own tools look too. No argument, XCom or log line has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from binlake.base.secrets import derive_variable, find_connections
from binlake.config import Replication
from binlake.errors import ConfigError


def read_connections(replication: Replication) -> dict[str, str]:
    """The environment with the connections that `replication` names. Raises ConfigError for one that is not defined."""
    return {derive_variable(name): _read(name) for name in list_connections(replication)}


async def fetch_connections(replication: Replication) -> dict[str, str]:
    """As `read_connections`, in the triggerer's loop; one that is not defined is left out: the task reports it."""
    found = {}
    for name in list_connections(replication):
        try:
            found[derive_variable(name)] = (await BaseHook.aget_connection(name)).get_uri()
        except AirflowNotFoundException:
            continue
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
