"""An injection that cannot run any more is reported once: its position has passed, or is before the lake."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pydantic import ValidationError

from binlake.config import Replication
from binlake.dialect.replacement import Injection
from binlake.lake.paths import LakePaths
from binlake.lake.skipped import record_late_injections
from binlake.lake.windowlog import WindowLog


def test_injection_before_the_merged_position_is_reported_once(tmp_path: Path) -> None:
    # U-15, DESIGN 3.11
    paths = LakePaths(str(tmp_path))
    windows = WindowLog(paths)
    ran, late, before, due = (Injection(ts, f"DROP TABLE t{ts}", "d") for ts in (20, 30, 5, 41))

    def list_reports() -> list[tuple[int, str]]:
        record_late_injections(paths, windows, (before, ran, late, due), 40, "run")
        found = windows.read_events(stage="injection")
        return sorted((event["hi"], json.loads(event["detail"])["sql"]) for event in found)

    decided = {"commit_ts": [20, 30], "sql": [ran.sql, late.sql], "decision": ["injected", "apply"]}
    write_deltalake(paths.locate_table("ddl"), pa.table(decided))
    for _ in range(2):
        assert list_reports() == [(5, before.sql), (30, late.sql)]
    # Another text at a passed position does not run either.
    record_late_injections(paths, windows, [Injection(20, "DROP TABLE other", "d")], 40, "run")
    assert list_reports() == [(5, before.sql), (20, "DROP TABLE other"), (30, late.sql)]


def test_lake_without_ddl_reports_late_injections(tmp_path: Path) -> None:
    windows = WindowLog(LakePaths(str(tmp_path)))
    record_late_injections(LakePaths(str(tmp_path)), windows, [Injection(5, "DROP TABLE t", "d")], 5, "run")
    assert [event["state"] for event in windows.read_events(stage="injection")] == ["late"]


@pytest.mark.parametrize("commit_ts", ["-1", "0"])
def test_injection_needs_a_position(commit_ts: str) -> None:
    entry = {"commit-ts": commit_ts, "sql": "DROP TABLE t", "db": "d"}
    with pytest.raises(ValidationError, match="commit-ts"):
        Replication.model_validate({"name": "r", "lake": {"path": "x"}, "ddl-injection": [entry]})
