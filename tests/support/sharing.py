"""Distribute test files over the processes of `make test`: files that share an expensive resource run in one."""

from __future__ import annotations

from typing import Any

import pytest
from support.selection import dearest_file_first
from xdist.scheduler import LoadFileScheduling

# Every process that starts Spark's JVM, or Kafka and a registry, or loads Airflow and creates its database, spends 10
# to 20 s of CPU on it; a store for objects takes two or three. Maps the start of a test's id to a group; the first
# match counts.
TOGETHER = {
    "tests/feed/test_kafka_publisher.py": "kafka",
    "tests/feed/test_kafka_secured.py": "kafka",
    "tests/feed/test_registry_policies.py": "kafka",
    "tests/spark_jobs/test_changefeed_command.py": "kafka",
    "tests/spark_jobs/test_consumers.py": "kafka",
    "tests/spark_jobs/test_emit_again.py": "kafka",
    "tests/spark_jobs/test_feed_protocols.py": "kafka",
    "tests/spark_jobs/test_feed_stages.py": "kafka",
    "tests/spark_jobs/test_feed_states.py": "kafka",
    "tests/spark_jobs/test_moved_feed.py": "kafka",
    "tests/spark_jobs/test_publish_faults.py": "kafka",
    "tests/spark_jobs/": "spark",
    "tests/dags/": "airflow",
    "tests/plugins/": "airflow",
    "tests/repair/test_one_transaction.py": "airflow",
    "tests/feed/files/test_stores.py": "store",
    "tests/lake/test_lease.py": "store",
    "tests/lake/test_store_credentials.py": "store",
    "tests/lake/test_store_tls.py": "store",
    "tests/lake/test_storetable.py": "store",
    "tests/lake/test_storecheck.py": "store",
    "tests/target/relay/test_relay_store.py": "store",
    # Only these end-to-end tests use Spark; the others start no JVM (tests/e2e/conftest.py).
    "tests/e2e/test_e2e_landing.py::test_window_ends_at_its_size_limit_and_the_next_continues_after_it": "spark",
    "tests/e2e/test_e2e_traces.py::test_tasks_on_spark_are_spans_of_their_job": "spark",
    "tests/e2e/": "e2e",
}


def scope_of(nodeid: str) -> str:
    """The group of tests that share a process with this test: its file, or all files that share a resource."""
    own = nodeid.partition("::")[0]
    return next((scope for begin, scope in TOGETHER.items() if nodeid.startswith(begin)), own)


def longest_first(items: list[pytest.Item]) -> None:
    """Sort the groups, which take minutes, to the front, then the most expensive files."""
    dearest_file_first(items)
    shared = set(TOGETHER.values())
    items.sort(key=lambda item: scope_of(item.nodeid) not in shared)


def scheduler(config: pytest.Config, log: Any) -> object | None:
    """The scheduler of a run with `--dist loadfile`; None for a quick run, whose tests share no expensive resource."""
    if config.getvalue("dist") != "loadfile" or config.option.quick:
        return None
    by_scope: object = LoadFileScheduling(config, log)
    vars(by_scope)["_split_scope"] = scope_of
    return by_scope
