"""A drainer.toml is converted to a replication, with a line about each key; an unknown key is an error (S4-52)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from binlake.cli import run
from binlake.config.load import check_replication
from binlake.config.model import Replication
from binlake.rules import Rules

DRAINER = """
addr = "127.0.0.1:8249"
detect-interval = 10
data-dir = "data.drainer"
pd-urls = "http://10.0.0.1:2379,http://10.0.0.2:2379"
compressor = "gzip"
initial-commit-ts = -1
[security]
ssl-ca = "/ca.pem"
[syncer]
ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql,junk"
txn-batch = 40
worker-count = 8
disable-dispatch = false
safe-mode = true
db-type = "mysql"
ignore-txn-commit-ts = [470583292723200001]
replicate-do-db = ["~^b.*", "s1"]
loopback-control = true
channel-id = 7
sync-ddl = false
[[syncer.replicate-do-table]]
db-name = "test"
tbl-name = "~^a.*"
[[syncer.ignore-table]]
db-name = "s1"
tbl-name = "log"
[syncer.binlog-filter-rule.no-drop]
ignore-event = ["drop table", "delete"]
ignore-sql = ["^TRUNCATE"]
[[syncer.table-migrate-rule]]
binlog-filter-rule = ["no-drop"]
[syncer.table-migrate-rule.source]
schema = "s1"
table = "t*"
[syncer.relay]
log-dir = "/relay"
max-file-size = 1000
[syncer.to]
host = "10.0.0.3"
user = "root"
password = "TopSecret1"
port = 3307
merge = true
sync-mode = 2
params = {readTimeout = "10s"}
[syncer.to.security]
ssl-ca = "/target-ca.pem"
[syncer.to.checkpoint]
schema = "marks"
type = "mysql"
"""


def imported(folder: Path, text: str) -> Replication:
    """Import a drainer's file; returns the replication and the report."""
    file = folder / "drainer.toml"
    file.write_text(text, encoding="utf-8")
    assert run(["drainer", "import", str(file), "--name", "pay", "--out", str(folder / "out"), "--output", "json"]) == 0
    return check_replication(folder / "out" / "pay.toml")


def test_settings_of_a_drainer_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # S4-52
    replication = imported(tmp_path, DRAINER)
    target = replication.target
    assert target is not None
    assert (target.host, target.port, target.user, target.sync_mode) == ("10.0.0.3", 3307, "root", 2)
    assert (target.batch_rows, target.worker_count, target.safe_mode, target.mode) == (40, 8, "always", "parallel")
    assert (target.checkpoint_schema, target.password) == ("marks", "env:BINLAKE_TARGET_PASSWORD")
    assert (replication.relay.log_dir, replication.relay.max_file_size) == ("/relay", 1000)
    assert replication.source.pd_urls == ("http://10.0.0.1:2379", "http://10.0.0.2:2379")
    assert (replication.loopback.channel_id, replication.loopback.copies_ddl) == (7, False)
    assert (replication.initial_commit_ts, replication.source.security.ssl_ca) == ("-1", "/ca.pem")
    assert target.security.ssl_ca == "/target-ca.pem"
    rules = Rules.of(replication)
    kept = [("bank", "t"), ("s1", "t1"), ("s1", "log"), ("test", "ab"), ("test", "b"), ("junk", "a")]
    assert [rules.keeps(*name) for name in kept] == [True, True, False, True, False, False]
    assert rules.events.list_passed_kinds("s1", "t1") == {"insert", "update"}
    assert replication.filter.ignore_txn_commit_ts == ("470583292723200001",)
    told = capsys.readouterr().out
    assert "TopSecret" not in told
    fates = {line["key"]: (line["fate"], line["line"]) for line in json.loads(told)["lines"]}
    whole = ("params", "ignore-event", "ignore-sql", "binlog-filter-rule", "schema", "table", "db-name", "tbl-name")
    said = {key.rpartition(".")[2] for key in fates} | {*whole}
    assert set(re.findall(r"(?m)^([a-z-]+) =", DRAINER)) - said == set()
    assert fates["compressor"] == ("none", 6)
    assert fates["syncer.txn-batch"] == ("taken", 12)
    assert fates["syncer.to.checkpoint.type"][0] == fates["syncer.to.params"][0] == "differs"


def test_drainer_to_kafka_becomes_a_feed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = 'kafka-addrs = "k1:9092,k2:9092"\ntopic-name = "obinlog"\nkafka-max-message-size = 1000\nkafka-version = "2.4"'
    replication = imported(tmp_path, f'[syncer]\ndb-type = "kafka"\ntxn-batch = 9\n[syncer.to]\n{to}\n')
    assert replication.target is None
    (feed,) = replication.feed
    assert feed.sink.kafka is not None
    assert (feed.sink.protocol, feed.sink.topic, feed.sink.kafka.brokers) == (
        "slave-binlog", "obinlog", ("k1:9092", "k2:9092"),
    )  # fmt: skip
    assert feed.sink.kafka.max_message_bytes == 1000
    fates = {line["key"]: line["fate"] for line in json.loads(capsys.readouterr().out)["lines"]}
    assert fates["syncer.txn-batch"] == fates["syncer.to.kafka-version"] == "none"


# S0-08
def test_drainer_to_files_becomes_a_feed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = 'dir = "/backup/my drainer/"\nretention-time = 7\ncompression = "gzip"\nhost = "h"'
    replication = imported(tmp_path, f'[syncer]\ndb-type = "file"\ntxn-batch = 9\n[syncer.to]\n{to}\n')
    assert replication.target is None
    (feed,) = replication.feed
    storage = feed.sink.storage
    assert storage is not None
    assert (feed.sink.protocol, storage.root) == ("pb", "/backup/my drainer/binlake")
    assert (storage.compression, storage.retention_days) == ("gzip", 7)
    fates = {line["key"]: line["fate"] for line in json.loads(capsys.readouterr().out)["lines"]}
    assert (fates["syncer.to.dir"], fates["syncer.to.retention-time"]) == ("differs", "taken")
    assert fates["syncer.to.compression"] == "differs"  # the original's reparo does not read such files
    assert fates["syncer.txn-batch"] == fates["syncer.to.host"] == "none"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("detect-intervall = 5", "unknown key `detect-intervall`|did you mean `detect-interval`"),
        ("[syncer]\ntxn-bach = 5", "did you mean `txn-batch`"),
        ("[syncer.to]\nmerg = true", "did you mean `merge`"),
        ('[syncer]\ndb-type = "flash"', "db-type 'flash' has no counterpart"),
        ('[syncer]\ndb-type = "file"', "`syncer.to.dir` must be an absolute path"),
        ('[syncer]\ndb-type = "file"\n[syncer.to]\ndir = "data"', "`syncer.to.dir` must be an absolute path"),
        ('[syncer]\ndb-type = "kafka"', "`syncer.to.topic-name` is missing"),
        ("[syncer]\ntxn-batch = 0", "`target.txn-batch"),
        ("[syncer]\nworker-count = true", "must be a number, not true"),
        ('[syncer.relay]\nlog-dir = "relay"', "depends on the working directory"),
        ('[[syncer.table-migrate-rule]]\nbinlog-filter-rule = ["x"]\nsource = {schema = "a"}', "has no 'x'"),
        ("[syncer", "not valid TOML"),
    ],
)
def test_invalid_setting_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:  # S4-52
    file = tmp_path / "drainer.toml"
    file.write_text(text, encoding="utf-8")
    assert run(["drainer", "import", str(file), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert all(word in error for word in words.split("|"))
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
