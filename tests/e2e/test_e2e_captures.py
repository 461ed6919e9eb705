"""Recorded TiDB clusters through pumps, windows and MariaDB: equal at a sample of states; `make captures` takes more.

The states are spread evenly and include the last, so that the first window holds most of a capture and many segments.
test_captures_direct compares all states of all captures without Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.mariadb import MariaDb

from binlake.testkit.captures.capture import Capture
from deploy.local.captures import run_capture

pytestmark = [pytest.mark.spark, pytest.mark.mariadb, pytest.mark.e2e, pytest.mark.soak]

CAPTURES = Path(__file__).parent.parent / "captures"


# name: (states compared, pumps)
CASES = {
    "keys_oldcoll": (1, 2),
    # names with capital letters
    "shard_mixed": (1, 2),
    # orphans, and held and duplicated binlogs, need three pumps
    "txn": (1, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_capture_is_equal_after_windows(
    name: str, empty_mariadb: MariaDb, spark: SparkSession, tmp_path: Path
) -> None:  # S0-22 S0-55 S0-60 S0-64 S1-04 R-07 R-08 R-13
    states, pumps = CASES[name]
    outcome = run_capture(
        Capture(CAPTURES / name), empty_mariadb, lambda: spark, tmp_path, most_states=states, pumps=pumps
    )
    assert outcome.format_line().endswith("equal"), outcome.format_line()
    assert outcome.states == states
    assert outcome.rows > 20
