"""Every row of the captures equals the row that TiDB's own codec decoded (exemptions: codec_golden, each counted)."""

from __future__ import annotations

from pathlib import Path

import pytest
from codec_golden import compare

from binlake.testkit.captures.capture import Capture

pytestmark = pytest.mark.long

CAPTURES = Path(__file__).parents[2] / "captures"

# name: (rows, exemptions); every transaction is compared, but only every fourth of sysbench_like, whose rows are alike
CASES: dict[str, tuple[int, dict[str, int]]] = {
    "anomaly": (37, {}),
    # Rows that are committed while a DDL runs have the definition after it (binlake.rows.schema.window).
    "bank": (35372, {"place-added": 18, "place-removed": 86}),
    "ddl": (1861, {"gone": 1, "hidden-in-delete": 32, "virtual-in-delete": 6, "place-added": 98, "place-removed": 219}),
    "ddl_late": (
        2000,
        {
            "gone": 1,
            "hidden-in-delete": 32,
            "virtual-in-delete": 6,
            "absent-in-delete": 1,
            "place-added": 105,
            "place-removed": 238,
        },
    ),
    "keys": (2704, {}),
    "keys_oldcoll": (2639, {}),
    "partition_gen": (1464, {"hidden-in-delete": 23, "virtual-in-delete": 128}),
    "shard": (903, {}),
    "shard_mixed": (913, {}),
    "sysbench_like": (17218, {}),
    "txn": (48424, {}),
    "types_all": (634, {"float-exponent": 149, "json-double": 33, "error-value": 21}),
}


# The captures with the most rows; demo and windows bring them to targets in every run.
LARGE = ("bank", "txn")


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.soak) if one in LARGE else one for one in CASES])
def test_every_decoded_row_equals_tidbs_decoding(name: str) -> None:  # R-19, S0-60
    rows, exempt = CASES[name]
    result = compare(Capture(CAPTURES / name), every=4 if name == "sysbench_like" else 1)
    assert result.differences == []
    assert {key: count for key, count in result.exempt.items() if count} == exempt
    assert (result.rows, result.batched) == (rows, rows)


def test_every_capture_is_compared() -> None:
    assert set(CASES) == {path.name for path in CAPTURES.iterdir() if [*path.glob("decoded.jsonl*")]}
