"""Sessions on a Spark Connect server that their owner can find again.

A client that is killed leaves its job running on the server, where it holds the cores (stack facts, "Connect server").
So each try of a task has a session id that the next try can compute, and releases it: that interrupts what still runs.
An id is used once, because a released session cannot be opened again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable


def session_id(replication: str, stage: str, run_id: str, try_number: int) -> str:
    """The id of the session of this try: a UUID made from its arguments."""
    name = "\x00".join((replication, stage, run_id, str(try_number)))
    return str(uuid.UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=4))


def with_session(url: str, session: str) -> str:
    """The Connect URL `url` (`sc://host:port/;key=value`) with the session id `session`."""
    base, _, params = url.partition("/;")
    kept = [part for part in params.split(";") if part and not part.startswith("session_id=")]
    return f"{base.rstrip('/')}/;{';'.join([*kept, f'session_id={session}'])}"


def release(url: str, log: Callable[[str], None]) -> None:
    """End the session of `url` (which carries its id) and interrupt its jobs; an unknown session is no error.

    A server that cannot be reached is logged, not raised: whoever comes next meets it with a better message.
    """
    # At call time: a DAG file that is parsed must not load pyspark.
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import SparkConnectClient

    client = SparkConnectClient(connection=url, retry_policy={"max_retries": 1, "max_backoff": 1000})
    try:
        client.release_session()
    except PySparkException as error:
        log(f"session not released: {error}")
    finally:
        client.close()
