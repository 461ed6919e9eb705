"""Every genuine capture through the core alone into MariaDB: equal at every state that TiDB recorded.

The comparison is independent: states.jsonl is what TiDB showed a MySQL client, and the target is read by plain SQL.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mariadb import MariaDb

from binlake import compare
from binlake.testkit.captures.capture import Capture
from deploy.local.captures import run_direct

pytestmark = pytest.mark.mariadb

CAPTURES = Path(__file__).parents[1] / "captures"

# name: (states, rows compared); sysbench_like holds the rows of bank ten times
STATES = {
    "anomaly": (18, 141),
    "bank": (6, 120000),
    "ddl": (115, 3404),
    "ddl_late": (115, 2971),
    "keys": (5, 2847),
    "keys_oldcoll": (5, 3011),
    "live_cases": (1, 14311),
    "partition_gen": (6, 2359),
    "shard": (12, 3509),
    "shard_mixed": (12, 3464),
    "txn": (12, 18932),
    "types_all": (6, 537),
    "zones_rearranged": (14, 4909),
}
# Other tests apply windows of `txn` and the rows of `bank` to a target in every run (tests/e2e,
# tests/deploy/test_demo.py). The 342 tables of `live_cases` take half a minute of CPU.
LATER = ("bank", "txn", "ddl", "live_cases")
_OF_DDL = [
    "RECOVER TABLE `recov`;",
    "FLASHBACK TABLE `recov` TO `flashed`;",
    "FLASHBACK DATABASE `fb_db` TO `fb_db_2`;",
]
BY_HAND = {
    "ddl": _OF_DDL,
    "ddl_late": _OF_DDL,
    "live_cases": ["FLASHBACK TABLE `t`;", "FLASHBACK TABLE `t` TO `t2`;"],
}


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.soak) if one in LATER else one for one in STATES])
def test_capture_is_equal_at_every_state(name: str, mariadb: MariaDb) -> None:  # S0-22 S0-60 S0-64 R-13 R-19
    outcome = run_direct(Capture(CAPTURES / name), mariadb)
    assert outcome.difference == ""
    assert (outcome.states, outcome.rows) == STATES[name]
    copied = [text for text in outcome.by_hand if text.startswith("Betrieb.Tagebuch copied again after ALTER TABLE")]
    assert len(copied) == (3 if name == "zones_rearranged" else 0)
    assert [text for text in outcome.by_hand if text not in copied] == BY_HAND.get(name, [])
    # reported instead of skipped: JSON that MariaDB's own functions cannot read
    assert (compare.JSON_DEEP in outcome.exemptions) == (name == "types_all")
