"""Where Spark is, according to Airflow's connection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from binlake.config import Replication
from binlake_airflow.pages.orchestration import find_spark_address


def test_connect_server_of_the_connection_is_found_and_nothing_else_has_an_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "spark_connect", "host": "spark", "port": 7}))
    raw: dict[str, Any] = {"name": "orders", "lake": {"path": "/l"}}

    def find(**airflow: str) -> object:
        return find_spark_address(Replication.model_validate({**raw, "airflow": airflow}))

    assert find(engine="connect", **{"spark-conn-id": "here"}) == (("spark", 7),)
    assert find(**{"spark-conn-id": "nowhere"}) == ()
