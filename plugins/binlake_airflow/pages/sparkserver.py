"""Where Spark is, according to Airflow's connection of a replication."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from binlake.base.reachability import CONNECT_PORT, parse_address
from binlake.config import Replication
from binlake.health.reachability import Address

log = structlog.get_logger(__name__)

_SPARK_PORT = 7077


def find_spark_address(replication: Replication) -> Sequence[Address]:
    """The Connect server or standalone master of the replication's connection, if this process knows it."""
    from airflow.sdk import BaseHook

    conn_id = replication.airflow.spark_conn_id
    try:
        connection = BaseHook.get_connection(conn_id)
        host, port = connection.host or "", connection.port
        if replication.airflow.engine == "connect":
            return (parse_address(f"{host}:{port or CONNECT_PORT}", CONNECT_PORT),)
        return (parse_address(host, port or _SPARK_PORT),) if host.startswith("spark://") else ()
    except Exception as error:  # noqa: BLE001 - the connection may be known only to tasks
        log.info("spark_address_unknown", spark_conn_id=conn_id, error=str(error))
        return ()
