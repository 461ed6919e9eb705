"""Whether anybody listens where a replication's target and Spark are: a TCP connection each, side by side, 1 s.

No password is asked for: pages have none. What was found is kept for some seconds, so that a page does not wait for a
dead address each time. PD and pumps are asked for on their own (`binlake_airflow.pages.nodes`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from binlake.base.reachability import CONNECT_PORT, address_of, is_listening
from binlake.config import Replication

log = structlog.get_logger(__name__)

TIMEOUT_S = 1.0
_KEEP_S = {True: 5.0, False: 15.0}
"""Seconds that an answer counts, by what it was."""
_SPARK_PORT = 7077

Address = tuple[str, int]
_known: dict[Address, tuple[float, bool]] = {}
_lock = threading.Lock()


def reach_view(replication: Replication) -> dict[str, bool | None]:
    """For target and Spark: whether a server listens there; None where there is nothing to ask, or no address."""
    asked: dict[str, Callable[[], Address | None]] = {
        "target": lambda: _target_address(replication),
        "spark": lambda: _spark_address(replication),
    }
    with ThreadPoolExecutor(len(asked), "binlake-reach") as pool:
        found = {name: pool.submit(_check_address, address) for name, address in asked.items()}
    return {name: answer.result() for name, answer in found.items()}


def _check_address(address: Callable[[], Address | None]) -> bool | None:
    server = address()
    if server is None:
        return None
    with _lock:
        until, answer = _known.get(server, (0.0, False))
    if time.monotonic() < until:
        return answer
    answer = is_listening(*server, TIMEOUT_S)
    with _lock:
        _known[server] = (time.monotonic() + _KEEP_S[answer], answer)
    return answer


def _target_address(replication: Replication) -> Address | None:
    target = replication.target
    return None if target is None else (target.host, target.port)


def _spark_address(replication: Replication) -> Address | None:
    """The Connect server or the standalone master of the replication's connection, where this process knows it."""
    from airflow.sdk import BaseHook

    conn_id = replication.airflow.spark_conn_id
    try:
        found = BaseHook.get_connection(conn_id)
        host, port = found.host or "", found.port
        if replication.airflow.engine == "connect":
            return address_of(f"{host}:{port or CONNECT_PORT}", CONNECT_PORT)
        return address_of(host, port or _SPARK_PORT) if host.startswith("spark://") else None
    except Exception as error:  # noqa: BLE001 - a connection may be known to tasks only
        log.info("spark_address_unknown", spark_conn_id=conn_id, error=str(error))
        return None
