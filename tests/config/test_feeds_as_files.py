"""Feeds in their own files: merged into the replication, defined only once, readable only by the owner."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.replication_files import write_replication

from binlake.cli import run
from binlake.common.tomlfile import to_toml
from binlake.config import load_replication
from binlake.config.feed import FeedSection
from binlake.config.load import check_replication
from binlake.config.sidefiles import build_feed_path, write_feed_file
from binlake.errors import ConfigError

URI = "kafka://127.0.0.1:9092/t?protocol=avro&sasl-mechanism=plain&sasl-user=u&sasl-password=geheim"
SECTION = '[[feed]]\nname = "inside"\nsink-uri = "kafka://127.0.0.1:9092/t?protocol=avro"\n'


def feed(name: str = "kafka-avro", **more: Any) -> FeedSection:
    return FeedSection.model_validate({"name": name, "sink-uri": URI, **more})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_replication(tmp_path, "orders", target=None)


def test_feeds_of_the_folder_follow_those_of_the_file(file: Path) -> None:
    before = load_replication(file)
    file.write_text(file.read_text() + SECTION)
    for name in ("z", "b"):
        write_feed_file(build_feed_path(file, "orders", name), feed(name))
    write_feed_file(build_feed_path(file, "others", "c"), feed("c"))
    after = load_replication(file)
    assert [one.name for one in after.feed] == ["inside", "b", "z"]
    assert [stage.task for stage in after.list_stages()][-2:] == ["encode-z", "publish-z"]
    # a new feed does not change the windows that sinks have open.
    assert after.compute_data_hash() == before.compute_data_hash()
    assert check_replication(file).feed == after.feed


def test_written_feed_is_read_back_and_only_its_owner_can_read_it(file: Path) -> None:
    own = feed(
        dispatchers=[{"matcher": ["shop.*", '!shop.`a"b`'], "topic": "x_{schema}_{table}"}],
        transactions=False,
        rules=["*.*", "!a.`\x7f\\ü*`"],
    )
    path = build_feed_path(file, "orders", own.name)
    write_feed_file(path, own)
    path.chmod(0o644)
    write_feed_file(path, own)
    assert load_replication(file).feed == (own,)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_two_feeds_with_one_name_are_an_error_that_names_both_files(file: Path) -> None:
    file.write_text(file.read_text() + SECTION)
    path = build_feed_path(file, "orders", "inside")
    write_feed_file(path, feed("inside"))
    with pytest.raises(ConfigError, match="defined twice") as caught:
        load_replication(file)
    assert {str(file), str(path)} <= set(caught.value.where.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('name = "other"\nsink-uri = "kafka://h/t?protocol=avro"', "does not have the feed.s name"),
        ('name = "x"\nsink-url = "kafka://h/t?protocol=avro"', "unknown key `sink-url`"),
        ('name = "x"\nsink-uri = "kafka://h/t?protocol=nonsense"', "protocol=nonsense.*avro"),
        ('name = "x"\nsink-uri = "kafka://h/t?protocol=avro"\nstart-ts = "77"', "feed.start-ts"),
        ('name = "x"\nsink-uri = "kafka://h/t?protocol=avro"\nrules = ["a"]', "cannot be read"),
        ("name = ", "not valid TOML"),
    ],
)
def test_error_in_a_feeds_file_names_the_file(file: Path, text: str, why: str) -> None:
    path = build_feed_path(file, "orders", "x")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        load_replication(file)
    assert str(path) in caught.value.where["file"] or "feed" in str(caught.value)


# S2-06
def test_config_check_shows_feeds_without_passwords(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_feed_path(file, "orders", "kafka-avro")
    write_feed_file(path, feed(**{"schema-registry": "https://user:gehe%40im@registry:8081"}))
    assert run(["config", "check", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "sasl-password=***" in shown
    assert "https://***@registry:8081" in shown
    assert "geh" not in shown


# S2-41
@pytest.mark.parametrize("name", ["RecordNameStrategy", "io.confluent.kafka.TopicRecordNameStrategy"])
def test_only_topic_name_strategy_is_accepted(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        feed(**{"subject-name-strategy": name})
    assert feed(**{"subject-name-strategy": "io.x.TopicNameStrategy"}).subject_name_strategy == "TopicNameStrategy"


def test_target_ts_must_be_above_start_ts() -> None:
    with pytest.raises(ValueError, match="is not above"):
        feed(**{"start-ts": "470583292723200001", "target-ts": "470583292723200001"})


def test_written_toml_is_read_back_unchanged() -> None:
    values = {"a": 'x"\\\n\x7f\x00ü😀', "b": True, "c": [1, 2], "d e": {"f": ["g"]}, "n": None, "h": []}
    assert tomllib.loads(to_toml(values)) == {name: value for name, value in values.items() if value is not None}
