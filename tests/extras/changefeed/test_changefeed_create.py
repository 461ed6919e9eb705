"""`binlake changefeed create` behaves as `cdc cli`: the article's examples, TiCDC's configuration, refusals."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.replication_files import write_replication

from binlake.cli import run
from binlake.config import load_replication
from binlake.config.feed import FeedSection
from binlake.config.protocols import CsvOptions
from binlake.errors import ConfigError, Transient
from binlake.extras.changefeed import actions
from binlake.extras.changefeed.section import read_document

ARTICLE = "\n[sink]\ndispatchers = [\n {matcher = ['*.*'], topic = \"tidb_{schema}_{table}\"},\n]\n"
CREATE = "cdc cli changefeed create --pd=http://127.0.0.1:2379 "
REGISTRY = " --schema-registry=http://127.0.0.1:8081 --config changefeed_config.toml"
URI = "kafka://127.0.0.1:9092/topic-name?protocol=avro"
EXAMPLES = {
    "kafka-avro": URI,
    "kafka-avro-enable-extension": f"{URI}&enable-tidb-extension=true",
    "kafka-avro-string-option": f"{URI}&avro-decimal-handling-mode=string&avro-bigint-unsigned-handling-mode=string",
}


def _away(*_arguments: object) -> None:
    raise Transient("the brokers do not answer")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one replication that has not landed anything; no server answers, and none is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BINLAKE_REPLICATIONS", str(tmp_path))
    monkeypatch.setattr(actions, "require_servers_answer", lambda _feed: None)
    monkeypatch.setattr(actions, "forget_position", _away)
    return write_replication(tmp_path, "orders", target=None)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    # In a separate folder, because every TOML file of the other folder is a replication.
    folder = tmp_path / "own"
    folder.mkdir()
    path = folder / "changefeed_config.toml"
    path.write_text(ARTICLE)
    return path


def call(text: str) -> int:
    return run(shlex.split(text.removeprefix("cdc cli ")))


# S2-04, S2-12, S2-33
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_articles_examples_work_as_written(
    file: Path, config: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config.parent)
    assert call(f'{CREATE}--changefeed-id="{name}" --sink-uri="{EXAMPLES[name]}"{REGISTRY}') == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Create changefeed successfully!\nID: {name}\nInfo: ")
    assert "its first window checks its tables" in shown.err
    (feed,) = load_replication(file).feed
    assert (feed.name, feed.sink_uri, feed.schema_registry) == (name, EXAMPLES[name], "http://127.0.0.1:8081")
    assert feed.topics.find_topic("test", "t1") == "tidb_test_t1"
    assert feed.options.extension is ("extension" in name)
    assert feed.options.decimals == feed.options.unsigned_bigints.replace("long", "precise")
    assert call(f"changefeed query -c {name} --output json") == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["id"], info["sink_uri"], info["state"]) == (name, EXAMPLES[name], "normal")


# S2-06
def test_passwords_are_never_shown(file: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"{URI}&sasl-mechanism=plain&sasl-user=u&sasl-password=geheim1"
    registry = "https://me:geheim%402@127.0.0.1:8081"
    create = ["changefeed", "create", "-c", "a", "--sink-uri", uri, "--schema-registry", registry]
    assert run([*create, "--config", str(config)]) == 0
    assert call("changefeed query -c a") == 0
    assert call("changefeed list") == 0
    assert run(["config", "check", str(file)]) == 0
    new = uri.replace("geheim1", "geheim3")
    assert run(["changefeed", "update", "-c", "a", "--sink-uri", new, "--no-confirm"]) == 0
    assert load_replication(file).feed[0].sink_uri == new
    assert call("changefeed remove -c a") == 1
    assert call("changefeed remove -c a --force") == 0
    shown = capsys.readouterr()
    assert "sasl-password=***" in shown.out
    assert "its position at the sink (the brokers do not answer)" in shown.out
    assert "--force removes it" in shown.err
    assert "geheim" not in shown.out + shown.err
    assert load_replication(file).feed == ()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (f"-c a --sink-uri {URI}", "must contain {schema} and then {table}"),  # S2-43
        ("-c a --sink-uri kafka://h/t?protocol=nonsense --config C", "protocol=nonsense.*use one of avro"),  # S2-01
        (f"-c a_b --sink-uri {URI} --config C", "name"),
        (f"-c a --sink-uri '{URI}&enable-tidb-extension=maybe' --config C", "use true or false"),
        (f"-c a --sink-uri {URI} --config C --pd http://127.0.0.1:2999", "no replication has this PD.*--replication"),
        (f"-c a --sink-uri {URI} --config absent.toml", "cannot be read"),
        (f"-c a --sink-uri {URI} --config C --target-ts 470583292723200001 --start-ts 470583292723200002", "not above"),
        (f"-c a --sink-uri {URI} --config C --tz Mars", "not a time zone"),
    ],
    ids=[
        "topic without placeholders",
        "unknown protocol",
        "invalid name",
        "invalid boolean",
        "unknown pd",
        "missing config file",
        "target-ts below start-ts",
        "unknown time zone",
    ],
)
def test_invalid_request_is_refused(
    file: Path, config: Path, arguments: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(f"changefeed create {arguments.replace(' C', f' {config}')}") == 1
    assert re.search(why, capsys.readouterr().err)
    assert load_replication(file).feed == ()


def test_pd_url_selects_the_replication_or_says_why_not(
    file: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_replication(file.parent, "stock", target=None, source='pd-urls = "http://pd-1:2379,pd-2:2380"')
    create = f"changefeed create --sink-uri {URI} --config {config}"
    assert call(f"{create} -c a --pd PD-2:2380") == 0
    assert [feed.name for feed in load_replication(other).feed] == ["a"]
    assert call(f"{create} -c b --pd 127.0.0.1") == 0
    assert [feed.name for feed in load_replication(file).feed] == ["b"]
    assert call(f"{create} -c c") == 1
    assert "several replications have this PD" in capsys.readouterr().err
    assert call(f"{create} -c c --replication {file} --pd pd-1:2379") == 1
    assert "has another PD" in capsys.readouterr().err
    assert call(f"{create} -c b --replication {file}") == 1
    assert "a changefeed with this id exists already" in capsys.readouterr().err
    assert call(f"{create} --replication {file} --output json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["id"].count("-") == 4
    assert made["file"].endswith(f"feeds/orders/{made['id']}.toml")


def test_feed_in_the_replications_own_file_is_left_to_the_operator(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(f'{file.read_text()}\n[[feed]]\nname = "own"\nsink-uri = "{URI}"\n')
    for action in ("update -c own --tz UTC", "remove -c own"):
        assert call(f"changefeed {action}") == 1
        assert "is a section [[feed]]" in capsys.readouterr().err
    assert call("changefeed list --output json") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["own"]
    assert call("changefeed query -c other") == 1
    assert "no such feed" in capsys.readouterr().err


@pytest.mark.usefixtures("file")
def test_unreachable_servers_are_refused_unless_allowed(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "require_servers_answer", _away)
    create = f"changefeed create -c a --sink-uri {URI} --config {config}"
    assert call(create) == 1
    assert "do not answer Hint: --unreachable-ok stores" in capsys.readouterr().err
    assert call(f"{create} --unreachable-ok") == 0


def test_update_asks_for_confirmation(
    file: Path, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(f"changefeed create -c a --sink-uri {URI} --config {config}") == 0
    update = "changefeed update -c a --schema-registry http://h:1"
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert call(update) == 1
    assert "schema_registry:  -> http://h:1" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("Y\n"))
    assert call(update) == 0
    assert load_replication(file).feed[0].schema_registry == "http://h:1"
    assert call(update) == 1
    assert "changes nothing" in capsys.readouterr().err


# S2-05
def test_ticdc_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "enable-old-value = true\ncase-sensitive = false\n[filter]\nrules = ['*.*', '!test.*']\n"
        "[sink]\nprotocol = 'avro'\ndispatchers = [{matcher=['a.*'], topic='x_{schema}_{table}', partition='ts'},"
        "{matcher=['*.*'], topic='y_{schema}_{table}', dispatcher='table'}]\n"
        "[sink.kafka-config]\npartition-num = 3\nenable-tls = true\n"
        "[sink.kafka-config.codec-config]\nenable-tidb-extension = true\n"
    )
    document = read_document(path)
    assert document.keys["rules"] == ["*.*", "!test.*"]
    assert [entry["partition"] for entry in document.keys["dispatchers"]] == ["ts", "table"]
    assert document.words == {"protocol": "avro", "partition-num": "3", "enable-tls": "true",
                              "enable-tidb-extension": "true"}  # fmt: skip


def test_ticdc_configuration_of_files_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "[sink]\nprotocol = 'csv'\nterminator = \"\\n\"\ndate-separator = 'month'\n"
        "[sink.csv]\ndelimiter = '|'\ninclude-commit-ts = true\nbinary-encoding-method = 'hex'\n"
        "[sink.cloud-storage-config]\nfile-size = 1048576\n"
    )
    document = read_document(path)
    assert document.words == {"protocol": "csv", "date-separator": "month", "file-size": "1048576"}
    section = {"name": "files", "sink-uri": "file:///tmp/x?protocol=csv", **document.keys}
    assert FeedSection.model_validate(section).options == CsvOptions("|", commit_ts=True, binary="hex", terminator="\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[mounter]\nworker-num = 16", r"`mounter.worker-num`.*has no effect here"),
        ("[[filter.event-filters]]\nmatcher = ['a.b']", r"`filter.event-filters`.*filters.md"),
        ("[filter]\nrule = ['*.*']", r"unknown key `filter.rule`.*did you mean `filter.rules`"),
        ("[sink]\ncolumn-selectors = []", "all columns"),
        ("[sink.kafka-config]\nkafka-version = '2.4.0'", "kafka-version.*omit it"),
        ("[sink.kafka-config.large-message-handle]\nlarge-message-handle-option = 'claim-check'", "max-message-bytes"),
        ("enable-old-value = false", "a feed supports only enable-old-value = true"),
        ("[sink.csv]\ndelimeter = ','", "did you mean `sink.csv.delimiter`"),
        ("whatever = 1", "unknown key `whatever`.*known"),
        ("[sink]\ndispatchers = [{matcher=['a.*'], topic='t', columns=['a']}]", "`columns` of a dispatcher"),
        ("[sink]\ndispatchers = ['a']", "a dispatcher must be a table"),
    ],
)
def test_unknown_keys_are_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_document(path)


def test_file_and_options_must_agree(file: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(ARTICLE + 'schema-registry = "http://h:1"\nprotocol = "avro"\n')
    create: list[Any] = ["changefeed", "create", "-c", "a", "--config", str(config), "--sink-uri"]
    assert run([*create, URI, "--schema-registry", "http://h:2"]) == 1
    assert "`schema-registry` is set twice" in capsys.readouterr().err
    assert run([*create, "kafka://h/t?partition-num=2"]) == 0
    (feed,) = load_replication(file).feed
    assert (feed.sink.protocol, feed.sink.kafka and feed.sink.kafka.partitions) == ("avro", 2)
    assert feed.schema_registry == "http://h:1"


def test_other_protocols_take_the_uris_topic_and_their_own_keys(
    file: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(
        "[sink]\ndelete-only-output-handle-key-columns = true\nterminator = ''\n"
        "dispatchers = [{matcher = ['*.*'], partition = 'ts'}]\n"
        "[sink.kafka-config]\noutput-raw-change-event = true\nrequired-acks = -1\n"
    )
    assert call(f"changefeed create -c a --sink-uri 'kafka://h/all?protocol=canal-json' --config {config}") == 0
    (feed,) = load_replication(file).feed
    assert (feed.topics.find_topic("shop", "item"), feed.topics.find_dispatcher("shop", "item").partition) == (
        "all",
        "ts",
    )
    assert feed.sink_uri.endswith("delete-only-output-handle-key-columns=true&output-raw-change-event=true")
    assert call(f"changefeed create -c b --sink-uri 'kafka://h?protocol=canal-json' --config {config}") == 1
    assert "a dispatcher has no topic" in capsys.readouterr().err
    config.write_text("[sink]\nterminator = \"\\n\"\ndate-separator = 'none'\n[sink.csv]\ndelimiter = ';'\n")
    assert call(f"changefeed create -c c --sink-uri 'file:///feed?protocol=csv' --config {config}") == 0
    feed = load_replication(file).require_feed("c")
    assert (feed.csv.delimiter, feed.terminator, feed.sink.storage and feed.sink.storage.date_separator) == (
        ";", "\n", "none",
    )  # fmt: skip
    config.write_text("[sink.csv]\ndelimiters = ';'\n")
    assert call(f"changefeed create -c d --sink-uri 'file:///feed?protocol=csv' --config {config}") == 1
    assert "unknown key `sink.csv.delimiters`" in capsys.readouterr().err


# S2-41
@pytest.mark.usefixtures("file")
def test_other_subject_name_strategies_are_refused_by_name(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(ARTICLE + 'subject-name-strategy = "RecordNameStrategy"\n')
    assert call(f"changefeed create -c a --sink-uri {URI} --config {config}") == 1
    assert "'RecordNameStrategy' is not supported; as in TiCDC, only TopicNameStrategy" in capsys.readouterr().err
