"""`binlake window list` shows the events of a lake, or of one of its sinks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.replication_files import write_replication

from binlake.cli import run as main
from binlake.config import load_replication
from binlake.errors import SchemaError
from binlake.feed.state import record_feed_error
from binlake.lake.failures import record_failure
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import name_feed_sink

LO, HI = 449_000_000_000_000_001, 449_000_000_000_000_777
FEEDS = tuple(
    f'name = "{name}"\nsink-uri = "kafka://k:9092/t?protocol=avro"\nschema-registry = "http://r:8081"'
    for name in ("orders", "audit")
)


@pytest.fixture
def replication(tmp_path: Path) -> Path:
    """One window of a replication with two feeds, one of which has failed."""
    path = write_replication(tmp_path, "shop", feeds=FEEDS, target=None)
    log = WindowLog(LakePaths.of(load_replication(path, secrets=False)))
    log.record(WindowEvent("land", LO, HI, "done", 3))
    for name in ("orders", "audit"):
        log.record(WindowEvent("encode", LO, HI, "done", 3, sink=name_feed_sink(name)))
    error = SchemaError("the registry refuses it", where={"table": "shop.item"}, hint="ask its owner")
    record_failure(log, "publish", error, run_id="r1", window=(LO, HI), sink=name_feed_sink("orders"))
    record_feed_error(log, "orders", "publish", error, run_id="r1")
    return path


def test_events_of_one_sink_are_listed(replication: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # S2-39, R-46
    command = ["window", "list", "--replication", str(replication)]
    assert main([*command, "--sink", "feed.orders", "--output", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(one["stage"], one["state"]) for one in shown] == [
        ("encode", "done"),
        ("failure", "failed"),
        ("feed", "error"),
    ]
    assert {one["sink"] for one in shown} == {"feed.orders"}
    assert shown[0]["hi"] == str(HI)
    main([*command, "--sink", "feed.audit", "--output", "json"])
    assert [one["stage"] for one in json.loads(capsys.readouterr().out)] == ["encode"]
    main([*command, "--output", "json"])
    assert len(json.loads(capsys.readouterr().out)) == 5


def test_limit_lists_the_last_events_the_newest_first(replication: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["window", "list", "--replication", str(replication), "--output", "json", "--limit"]

    def show(*arguments: str) -> list[str]:
        assert main([*command, *arguments]) == 0
        return [one["stage"] for one in json.loads(capsys.readouterr().out)]

    assert show("2") == ["feed", "failure"]
    assert show("9")[-1] == "land"
    assert show("1", "--sink", "feed.audit") == ["encode"]
    assert show("1", "--sink", "mirror") == []
    with pytest.raises(SystemExit):
        main([*command, "0"])


def test_failure_of_a_feed_is_shown_with_its_message(replication: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["window", "list", "--replication", str(replication), "--sink", "feed.orders"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "publish-orders failed: SchemaError: the registry refuses it Hint: ask its owner" in shown
    assert "encode-orders" in shown


def test_unknown_sink_is_refused_with_the_known_ones(replication: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["window", "list", "--replication", str(replication), "--sink", "feed.oders"]) == 1
    assert "feed.audit, feed.orders" in capsys.readouterr().err
