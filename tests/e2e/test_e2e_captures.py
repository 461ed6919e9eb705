"""Recorded TiDB clusters through pumps, windows and MariaDB: equal at each state; `make captures` does all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.mariadb import MariaDb

from binlake.capture import Capture
from deploy.local.captures import run_capture

pytestmark = [pytest.mark.spark, pytest.mark.mariadb, pytest.mark.e2e]

CAPTURES = Path(__file__).parent.parent / "captures"


@pytest.mark.parametrize(("name", "states"), [("keys", 5), ("shard", 12)])
def test_a_capture_is_equal_at_every_state(
    name: str, states: int, empty_mariadb: MariaDb, spark: SparkSession, tmp_path: Path
) -> None:  # S0-55 S0-60 S0-64 S1-04
    outcome = run_capture(Capture(CAPTURES / name), empty_mariadb, lambda: spark, tmp_path)
    assert outcome.line().endswith("equal"), outcome.line()
    assert outcome.states == states
    assert outcome.rows > 1000
    assert set(outcome.exemptions) <= {
        "collation mapped: utf8mb4_0900_ai_ci is utf8mb4_uca1400_nopad_ai_ci on the target"
    }
