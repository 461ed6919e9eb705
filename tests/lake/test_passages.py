"""Which stages took a commit_ts: each stage of each sink once, at its first time."""

from __future__ import annotations

from pathlib import Path

from binlake.lake.paths import LakePaths
from binlake.lake.transactions import Passages
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import name_feed_sink


def test_each_feed_takes_a_commit_ts_in_its_own_run(tmp_path: Path) -> None:
    log = WindowLog(LakePaths(str(tmp_path)))
    log.record(WindowEvent("merge", 0, 10, "done", run_id="r1"))
    for run, name in (("r1", "a"), ("r2", "b"), ("r3", "a")):
        log.record(WindowEvent("publish", 0, 10, "done", run_id=run, sink=name_feed_sink(name)))
    found = [passage.to_dict() for passage in Passages(log.read_events()).find_at(5)]
    assert [(one["task"], one["run_id"]) for one in found] == [
        ("merge", "r1"),
        ("publish-a", "r1"),
        ("publish-b", "r2"),
    ]
    assert {one["sink"] for one in found} == {"", "feed.a", "feed.b"}
