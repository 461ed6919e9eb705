"""`binlake changefeed` on a lake: checks at creation, the states that it shows, and what a removal leaves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from history import shop
from lakehouse import Lakehouse, Source
from support.topics import read_topic
from support.workload import Workload, integer

from binlake.cli import run
from binlake.config import load_replication
from binlake.extras.changefeed import actions
from binlake.feed.kafka import POSITIONS
from binlake.pump_service.pd import PlacementDriver
from binlake.rows.schema import mysqltypes as t
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.runner import run_sink

if TYPE_CHECKING:
    from deploy.local.apicurio import Apicurio
    from deploy.local.kafka import KafkaBroker

URI = "kafka://127.0.0.1:9092/t?protocol=avro"
FIRST = 470548479000000000
"""A commit_ts before the workload's first."""


class Place:
    """A replication's file, and its lake with the changes of `workload` up to `hi`."""

    def __init__(self, root: Path, workload: Workload, hi: int, pd: str = "http://127.0.0.1:1") -> None:
        self.name = f"r{abs(hash(root)) % 10**9}"
        self.file = root / "replications" / "orders.toml"
        self.file.parent.mkdir(parents=True)
        self.file.write_text(
            f'name = "{self.name}"\n[source]\npd-urls = "{pd}"\ntimeout-s = 0.3\n[lake]\npath = "{root / "lake"}"\n'
            "[mirror]\nenabled = false\n"
        )
        self.lakehouse = Lakehouse(None, root / "lake", Source.of_workload(workload), {"name": self.name})
        self.landed = self.lakehouse.land(FIRST, hi)

    def call(self, *words: object) -> int:
        return run(["changefeed", *map(str, words), "--replication", str(self.file)])

    def create(self, **options: object) -> int:
        """Run `create` with these tests' defaults for options that are not given."""
        given = {"changefeed-id": "a", "sink-uri": URI, "start-ts": FIRST, **options}
        return self.call("create", *(f"--{name}={value}" for name, value in given.items() if value is not None))

    def work(self, bounds: Bounds, feed: str = "a") -> list[str]:
        ctx = replace(self.lakehouse.context(), replication=load_replication(self.file))
        return [result.state for result in run_sink(ctx, ("encode", "publish"), bounds, feed=feed)]


def config_of(tmp_path: Path, topic: str = "{schema}_{table}", rules: str = "*.*") -> Path:
    path = tmp_path / "changefeed.toml"
    dispatchers = f"[{{matcher = ['*.*'], topic = '{topic}'}}]"
    path.write_text(f"[filter]\nrules = {rules.split()}\n[sink]\ndispatchers = {dispatchers}\n")
    return path


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make brokers and registry look reachable."""
    monkeypatch.setattr(actions, "require_servers_answer", lambda _feed: None)


Output = pytest.CaptureFixture[str]


# S2-15
@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_table_without_a_key_is_refused_by_name_at_creation(tmp_path: Path, capsys: Output) -> None:
    history = shop()
    place = Place(tmp_path, history.workload, history.cuts[0])
    assert place.create(config=config_of(tmp_path)) == 1
    assert re.search(r"without a primary key.*table=shop\.log", capsys.readouterr().err)
    assert place.create(config=config_of(tmp_path, rules="*.* !shop.log")) == 0


# S2-42
@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_two_tables_in_one_topic_are_refused_at_creation(tmp_path: Path, capsys: Output) -> None:
    workload = Workload()
    for db, table in (("a", "b_c"), ("a_b", "c")):
        workload.create_database(db)
        workload.create_table(db, table, [integer("id")], ["id"])
    place = Place(tmp_path, workload, workload.clock())
    assert place.create(config=config_of(tmp_path)) == 1
    assert re.search(r"same topic.*topic=a_b_c tables=a\.b_c, a_b\.c", capsys.readouterr().err)
    assert place.create(config=config_of(tmp_path, "{schema}.{table}")) == 0


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_topic_written_by_another_feed_is_a_warning(tmp_path: Path, capsys: Output) -> None:
    history = shop()
    place = Place(tmp_path, history.workload, history.cuts[0])
    config = config_of(tmp_path, rules="shop.item")
    assert place.create(config=config, **{"changefeed-id": "a"}) == 0
    assert "warning" not in capsys.readouterr().err
    assert place.create(config=config, **{"changefeed-id": "b"}) == 0
    assert "warning: the feed a writes shop.item to the topic shop_item too" in capsys.readouterr().err
    own = config_of(tmp_path, "own_{schema}_{table}", "shop.item")
    assert place.create(config=own, **{"changefeed-id": "c"}) == 0
    assert "warning" not in capsys.readouterr().err


# S2-46
@pytest.mark.usefixtures("quiet")
def test_columns_with_one_avro_name_are_refused_at_creation(tmp_path: Path, capsys: Output) -> None:
    workload = Workload()
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id"), integer("a b"), integer("a_b")], ["id"])
    place = Place(tmp_path, workload, workload.clock())
    assert place.create(config=config_of(tmp_path)) == 1
    assert re.search(r"same name in Avro.*table=shop\.item names=a_b", capsys.readouterr().err)


# S2-32
@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_unsigned_numbers_that_may_overflow_are_a_warning(tmp_path: Path, capsys: Output) -> None:
    workload = Workload()
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id"), integer("n", tp=t.LONGLONG, flen=20, unsigned=True)], ["id"])
    place = Place(tmp_path, workload, workload.clock())
    text = "&avro-bigint-unsigned-handling-mode=string"
    assert place.create(config=config_of(tmp_path), **{"sink-uri": URI + text}) == 0
    assert "BIGINT UNSIGNED" not in capsys.readouterr().err
    assert place.create(config=config_of(tmp_path), **{"changefeed-id": "b"}) == 0
    assert "warning: shop.item.n is BIGINT UNSIGNED" in capsys.readouterr().err


@pytest.fixture
def pd(tmp_path: Path) -> Iterator[PlacementDriver]:
    with PlacementDriver(tmp_path / "pd") as driver:
        yield driver


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_start_of_a_feed_must_lie_between_the_lakes_start_and_now(
    tmp_path: Path, pd: PlacementDriver, capsys: Output
) -> None:
    history = shop()
    place = Place(tmp_path, history.workload, history.cuts[0], pd.url)
    config = config_of(tmp_path, rules="shop.item")
    assert place.create(config=config, **{"start-ts": FIRST - 1}) == 1
    assert f"the earliest possible start-ts is {FIRST}" in capsys.readouterr().err
    assert place.create(config=config, **{"start-ts": "2099-01-01"}) == 1
    assert "is in the future" in capsys.readouterr().err
    assert place.create(config=config, **{"start-ts": None}) == 0
    (feed,) = load_replication(place.file).feed
    assert history.cuts[0] < int(feed.start_ts) < 1 << 60


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_start_must_be_given_without_pd(tmp_path: Path, capsys: Output) -> None:
    history = shop()
    place = Place(tmp_path, history.workload, history.cuts[0])
    config = config_of(tmp_path, rules="shop.item")
    assert place.create(config=config, **{"start-ts": None}) == 1
    assert "--start-ts TS" in capsys.readouterr().err
    assert place.create(config=config) == 0


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_feed_state_is_shown_and_decides_which_commands_are_allowed(tmp_path: Path, capsys: Output) -> None:
    history = shop()
    place = Place(tmp_path, history.workload, history.cuts[0])
    assert place.create(config=config_of(tmp_path, rules="shop.item")) == 0
    assert place.call("update", "-c", "a", "--tz", "+08:00", "--no-confirm") == 1
    assert "`binlake changefeed pause -c a` first" in capsys.readouterr().err
    assert place.call("pause", "-c", "a", "--reason", "consumers upgrade") == 0
    assert place.call("list", "--output", "json") == 0
    (shown,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["summary"]["state"] == "stopped"
    assert shown["summary"]["tso"] == str(FIRST)
    assert place.work(place.landed) == ["skipped"]
    assert place.call("update", "-c", "a", "--tz", "+08:00", "--no-confirm") == 0
    assert place.call("resume", "-c", "a") == 0
    # S2-39: a Permanent error, here because of a table without a key.
    path = place.file.parent / "feeds" / place.name / "a.toml"
    path.write_text(path.read_text().replace('"shop.item"', '"shop.*"'))
    with pytest.raises(Exception, match=r"shop\.log"):
        place.work(place.landed)
    assert place.call("query", "-c", "a", "--output", "json") == 0
    info: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (info["state"], info["error"]["table"], info["error"]["stage"]) == ("error", "shop.log", "encode")
    assert place.call("list") == 0
    assert "encode: a table without a primary key" in " ".join(capsys.readouterr().out.split())
    assert place.call("resume", "-c", "a") == 1
    config = config_of(tmp_path, rules="shop.item")
    assert place.call("update", "-c", "a", "--config", config, "--no-confirm") == 0
    assert place.call("resume", "-c", "a") == 0


def test_removed_feed_leaves_nothing_and_its_name_can_be_reused(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio, capsys: Output
) -> None:
    history = shop()
    place = Place(tmp_path, history.workload, history.cuts[0])
    prefix = place.name
    options: dict[str, object] = {
        "config": config_of(tmp_path, f"{prefix}.{{schema}}.{{table}}", "shop.item"),
        "sink-uri": URI.replace("127.0.0.1:9092", kafka.address),
        "schema-registry": schema_registry.url,
    }
    assert place.create(**options) == 0
    assert place.work(place.landed) == ["done", "done"]
    sent = len(read_topic(kafka.address, f"{prefix}.shop.item"))
    table = tmp_path / "lake" / place.name / "feed" / "a"
    assert (sent > 0, table.is_dir()) == (True, True)
    assert place.call("remove", "-c", "a", "--output", "json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["id"] == "a"
    assert not table.exists()
    own = [read.value for read in read_topic(kafka.address, POSITIONS) if read.key == f"{place.name}.a".encode()]
    assert own[-1] is None
    assert place.call("query", "-c", "a") == 1
    assert place.create(**options) == 0
    assert place.work(place.landed) == ["done", "done"]
    assert len(read_topic(kafka.address, f"{prefix}.shop.item")) == 2 * sent


def test_feed_can_be_moved_forward_or_back(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio, capsys: Output
) -> None:
    history = shop()
    place = Place(tmp_path, history.workload, history.cuts[0])
    topic = f"{place.name}.shop.item"
    options: dict[str, object] = {
        "config": config_of(tmp_path, f"{place.name}.{{schema}}.{{table}}", "shop.item"),
        "sink-uri": URI.replace("127.0.0.1:9092", kafka.address),
        "schema-registry": schema_registry.url,
    }
    assert place.create(**options) == 0
    commits = sorted(ts for ts, _ in history.states if ts <= history.cuts[0])
    assert place.call("resume", "-c", "a", "--overwrite-checkpoint-ts", commits[-1]) == 1
    assert "`binlake changefeed pause -c a` first" in capsys.readouterr().err
    assert place.call("pause", "-c", "a") == 0
    assert place.call("resume", "-c", "a", "--overwrite-checkpoint-ts", FIRST - 1) == 1
    assert "earliest possible start-ts" in capsys.readouterr().err
    assert place.call("resume", "-c", "a", "--overwrite-checkpoint-ts", commits[-3]) == 0
    assert place.work(place.landed) == ["done", "done"]
    assert len(read_topic(kafka.address, topic)) == 2
    assert place.call("pause", "-c", "a") == 0
    assert place.call("resume", "-c", "a", "--overwrite-checkpoint-ts", commits[-2]) == 0
    assert place.work(place.landed) == ["done", "done"]
    assert len(read_topic(kafka.address, topic)) == 3


def test_task_of_a_removed_feed_is_skipped_and_of_an_unknown_feed_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(actions, "require_servers_answer", lambda _feed: None)
    removed: Callable[..., None] = lambda *_: None  # noqa: E731
    monkeypatch.setattr(actions, "forget_position", removed)
    history = shop()
    place = Place(tmp_path, history.workload, history.cuts[0])
    assert place.create(config=config_of(tmp_path, rules="shop.item")) == 0
    assert place.call("remove", "-c", "a") == 0
    assert place.work(place.landed) == ["skipped"]
    with pytest.raises(Exception, match="no such feed"):
        place.work(place.landed, "b")
    assert place.call("list") == 0
    assert "has no changefeed" in capsys.readouterr().out
