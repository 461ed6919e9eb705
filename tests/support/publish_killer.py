"""Publish of a feed, killed at any step: `-m support.publish_killer FILE FEED LO HI`, for `support.killer`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from support.killer import serve
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from binlake.config import Replication
from binlake.errors import Transient
from binlake.feed.kafka import KafkaPublisher
from binlake.feed.schemaids import SchemaIds
from binlake.lake.windowlog import WindowLog
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.stages import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS: dict[str, tuple[type[Any], str, bool]] = {
    "fenced the former one": (KafkaPublisher, "_read_position", False),
    "read the position": (KafkaPublisher, "_read_position", True),
    "asked the registry": (SchemaIds, "add_headers", True),
    "began a transaction": (KafkaPublisher, "_send", False),
    "queued the messages": (KafkaPublisher, "_send", True),
    "delivered the messages": (KafkaPublisher, "_flush", True),
    "committed": (KafkaPublisher, "_commit", True),
    "before the record": (WindowLog, "record_together", False),
    "recorded": (WindowLog, "record_together", True),
}
"""Kill points: the class, its method, and whether the process dies after the call (True) or before it."""
TRANSACTION_ROWS = 7


def main(config: str, feed: str, lo: str, hi: str) -> None:
    """Read lines from the input until it ends."""
    replication = Replication.model_validate(json.loads(Path(config).read_text(encoding="utf-8")))

    def work(step: str, number: int) -> None:
        owner, name, behind = STEPS[step]
        method = _kill_at_call(getattr(owner, name), number, behind=behind)
        with (
            mock.patch.object(owner, name, method),
            mock.patch.object(publish, "TRANSACTION_ROWS", TRANSACTION_ROWS),
        ):
            _publish(StageContext(replication, "killed", _no_spark), Bounds(int(lo), int(hi)), feed)

    serve(work)


def _publish(ctx: StageContext, bounds: Bounds, feed: str) -> None:
    """Publish with retries after transient errors, as an Airflow task does."""
    for attempt in Retrying(retry=retry_if_exception_type(Transient), stop=stop_after_attempt(3), reraise=True):
        with attempt:
            publish.run(ctx, bounds, feed)


def _kill_at_call(method: Callable[..., Any], number: int, *, behind: bool) -> Callable[..., Any]:
    """Wrap `method` so that its call `number` (from 1) kills the process."""
    calls = 0

    def call(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not behind:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args, **more)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


def _no_spark() -> SparkSession:
    raise AssertionError("publish must not need Spark")


if __name__ == "__main__":
    main(*sys.argv[1:])
