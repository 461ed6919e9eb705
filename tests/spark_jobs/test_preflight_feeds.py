"""`binlake preflight` also checks feeds: tables that they cannot send, and servers that do not answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.replication_files import write_replication
from support.workload import Workload, integer, text

from binlake.cli import run as main
from binlake.feed import kafkaclient
from binlake.spark_jobs.commands import preflight
from deploy.local.ports import free_port


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Workload:
    """A source of two tables, one without a key."""
    made = Workload()
    made.create_database("app")
    made.create_table("app", "item", [integer("id"), text("v")], ["id"])
    made.create_table("app", "log", [integer("id")])

    @contextmanager
    def cluster(_: object) -> Iterator[SimpleNamespace]:
        source = SimpleNamespace(fetch_ddl_jobs=lambda _since: reversed(made.jobs))
        yield SimpleNamespace(cluster_id=7, pd=SimpleNamespace(fetch_ts=made.clock), source=source)

    monkeypatch.setattr(preflight, "open_cluster", cluster)
    return made


def feed(name: str, rules: str, broker: int, registry: int) -> str:
    uri = f"kafka://u:s3cret@127.0.0.1:{broker}/t?protocol=avro"
    return f'name = "{name}"\nsink-uri = "{uri}"\nschema-registry = "http://127.0.0.1:{registry}"\nrules = ["{rules}"]'


@pytest.mark.long
@pytest.mark.usefixtures("work")
def test_feed_that_cannot_run_is_refused_with_its_obstacles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # S2-15, S2-39
    monkeypatch.setattr(kafkaclient, "_ANSWER_S", 0.2)
    broker, registry = free_port(), free_port()
    feeds = [feed("all", "app.*", broker, registry), feed("items", "app.item", broker, registry)]
    file = write_replication(tmp_path, "shop", target=None, feeds=feeds)
    assert main(["preflight", "--replication", str(file), "--output", "json"]) == 1
    every, items = json.loads(capsys.readouterr().out)
    assert every["topics"] == items["topics"] == {"app.item": "app_item"}
    assert [text for text in every["refusals"] if "app.log" in text]
    assert not [text for text in items["refusals"] if "app.log" in text]
    for found in (every, items):
        assert [text for text in found["refusals"] if f"brokers=127.0.0.1:{broker}" in text]
        assert [text for text in found["refusals"] if f"registry=http://127.0.0.1:{registry}" in text]
    main(["preflight", "--replication", str(file)])
    shown = capsys.readouterr().out
    assert "feed items: 1 tables" in shown
    assert "s3cret" not in shown + str(every)


@pytest.mark.usefixtures("work")
def test_valid_feed_causes_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "find_connection_problems", lambda _: [])
    file = write_replication(tmp_path, "shop", target=None, feeds=[feed("items", "app.item", 1, 1)])
    assert main(["preflight", "--replication", str(file)]) == 0
    assert capsys.readouterr().out == "feed items: 1 tables\n"
