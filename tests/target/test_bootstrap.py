"""`binlake bootstrap` combines the feeder's page about its full loads with the lake's position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from binlake.config.model import Replication
from binlake.errors import CheckpointConflict, ConfigError, SourceUnavailable, WireError
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.spark_jobs.commands.bootstrap import read_bootstrap, read_loads


def source(load: dict[str, Any] | None = None, name: str = "shard-1", state: str = "reading") -> dict[str, Any]:
    return {"source": name, "state": state, "trouble": "why"} | ({} if load is None else {"load": load})


def page(*sources: dict[str, Any]) -> str:
    return json.dumps({"sources": sources})


DONE = {"state": "done", "rows": 100, "tables": 1, "tables_done": 1, "from_ts": "1000", "commit_ts": "2000"}


def replication(folder: Path) -> Replication:
    return Replication.model_validate(
        {"name": "fed", "lake": {"path": str(folder)}, "source": {"pd-urls": ["http://p"]}}
    )


def begin_lake(folder: Path, start: int, landed: int = 0) -> Replication:
    found = replication(folder)
    log = WindowLog(LakePaths.of(found))
    log.record(WindowEvent("start", start, start, "done"))
    if landed:
        log.record(WindowEvent("land", start, landed, "done"))
    return found


def test_bootstrap_waits_while_a_source_is_not_loaded(tmp_path: Path) -> None:
    loads = read_loads(page(source(DONE), source(None, "shard-2", "starting"), source(None, "shard-3")))
    assert [(load.source, load.state) for load in loads] == [("shard-1", "done"), ("shard-2", "waiting")]
    state = read_bootstrap(replication(tmp_path), loads)
    assert state.phase == "loading"
    part = {**DONE, "state": "reading", "rows": 25, "rows_estimated": 50}
    reading = read_loads(page(source(part, state="starting")))
    assert "25 of about 50 rows (50 %)" in read_bootstrap(replication(tmp_path), reading).text


def test_bootstrap_reports_when_the_base_is_loaded_and_landed(tmp_path: Path) -> None:
    loads = read_loads(page(source(DONE)))
    assert read_bootstrap(replication(tmp_path / "new"), loads).phase == "loaded"
    assert read_bootstrap(begin_lake(tmp_path / "behind", 1000, 1999), loads).phase == "loaded"
    state = read_bootstrap(begin_lake(tmp_path / "landed", 0, 2000), loads)
    assert state.phase == "landed"
    assert state.to_dict()["loads"][0]["commit_ts"] == "2000"


def test_lake_that_starts_after_the_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointConflict, match=r"begins after.*initial-commit-ts"):
        read_bootstrap(begin_lake(tmp_path, 1001), read_loads(page(source(DONE))))


def test_failed_or_missing_load_is_reported_at_once() -> None:
    with pytest.raises(SourceUnavailable, match=r"gave up on a source: why.*shard-1"):
        read_loads(page(source(state="failed")))
    with pytest.raises(ConfigError, match="no source of the feeder had a full load"):
        read_loads(page(source()))
    with pytest.raises(ConfigError, match="is not that of a feeder"):
        read_loads(None)
    with pytest.raises(WireError, match="cannot be read"):
        read_loads("{}")
