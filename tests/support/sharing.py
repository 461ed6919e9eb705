"""How the processes of `make test` share its files: those that need one dear thing in their process stay together."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# Each further process that starts Spark's JVM, or loads Airflow and makes its database, spends 10 to 20 s of CPU on it.
TOGETHER = {
    "tests/spark_jobs/": "spark",
    "tests/lake/test_rowhash.py": "spark",
    "tests/dags/": "airflow",
    "tests/plugins/": "airflow",
    "tests/repair/backfill/test_one_transaction.py": "airflow",
    "tests/e2e/": "e2e",
}
# Programs of their own do the work; in the way of its room, each would make that the last to end.
ALONE = ("tests/e2e/test_e2e_airflow.py", "tests/e2e/test_e2e_cluster.py", "tests/plugins/test_sparkconnect_server.py")


def scope_of(nodeid: str) -> str:
    """What runs in one process with this test: its file, or all that share what the file needs."""
    path = nodeid.partition("::")[0]
    if path in ALONE:
        return path
    return next((scope for begin, scope in TOGETHER.items() if path.startswith(begin)), path)


def scheduler(config: pytest.Config, log: Any) -> object | None:
    """Of a run that asks for whole files; a quick one starts nothing that is worth sharing."""
    if config.getvalue("dist") != "loadfile" or config.option.quick:
        return None
    by_scope: object = LoadFileScheduling(config, log)
    vars(by_scope)["_split_scope"] = scope_of
    return by_scope
