"""Passwords of a replication file are read from the environment, and only if they are used."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.replication_files import write_replication

from binlake.common.secrets import find_connections, resolve_secret
from binlake.config.feed import FeedSection
from binlake.config.load import load_replication
from binlake.config.problems import list_plain_secrets
from binlake.errors import ConfigError
from binlake.feed.kafkaclient import build_client_settings
from binlake.feed.registry import SchemaRegistry
from binlake.pump_service.feeder.settings import read_settings

SQL = 'sql = {host = "tidb", user = "reader", password = "env:BINLAKE_TEST_SQL"}'


def test_password_of_source_sql_is_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # S0-60
    file = write_replication(tmp_path, "demo", source=SQL, target=None)
    with pytest.raises(ConfigError, match=r"source\.sql\.password names.*variable=BINLAKE_TEST_SQL\] Hint: export"):
        load_replication(file)
    monkeypatch.setenv("BINLAKE_TEST_SQL", "hidden")
    sql = load_replication(file).source.sql
    assert sql is not None
    assert (sql.host, sql.port, sql.password) == ("tidb", 4000, "hidden")
    assert "hidden" not in repr(sql)
    untouched = load_replication(file, secrets=False).source.sql
    assert untouched is not None
    assert untouched.password == "env:BINLAKE_TEST_SQL"


@pytest.mark.parametrize(
    "connection",
    [
        "mysql://re%40der:hid%3Aden@h:1/?x=y",
        '{"conn_type": "mysql", "login": "re@der", "password": "hid:den"}',
    ],
)
def test_user_and_password_come_from_an_airflow_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: str
) -> None:
    named = SQL.replace("reader", "airflow:the-tidb").replace("env:BINLAKE_TEST_SQL", "airflow:the-tidb")
    file = write_replication(tmp_path, "demo", source=named, target=None)
    with pytest.raises(ConfigError, match="names the Airflow connection the-tidb, which is not set") as refused:
        load_replication(file)
    assert "AIRFLOW_CONN_THE-TIDB" in refused.value.hint
    for environ in (None, {"AIRFLOW_CONN_THE-TIDB": connection}):
        if environ is None:
            monkeypatch.setenv("AIRFLOW_CONN_THE-TIDB", connection)
        sql = load_replication(file, environ=environ).source.sql
        assert sql is not None
        assert (sql.user, sql.password) == ("re@der", "hid:den")
        monkeypatch.delenv("AIRFLOW_CONN_THE-TIDB", raising=False)


@pytest.mark.parametrize("connection", ["mysql://reader@h", '{"login": "reader"}', "{not json"])
def test_connection_without_a_password_is_named_and_not_shown(connection: str) -> None:
    with pytest.raises(ConfigError, match=r"^target\.password: the Airflow connection") as refused:
        resolve_secret("airflow:x", "target.password", environ={"AIRFLOW_CONN_X": connection})
    assert connection not in str(refused.value)


@pytest.mark.parametrize("text", ["env:A B", "airflow:", "env:", "Airflow:x", "secret", ""])
def test_everything_else_is_the_secret_itself(text: str) -> None:
    assert resolve_secret(text, "key", environ={}) == text


@pytest.mark.parametrize("key", ["target.password", "source.sql.password"])
def test_password_in_the_file_must_be_allowed_by_name(tmp_path: Path, key: str) -> None:
    sections = {"source.sql.password": {"source": SQL.replace("env:BINLAKE_TEST_SQL", "Hidden"), "target": None},
                "target.password": {"target": 'password = "Hidden"'}}  # fmt: skip
    file = write_replication(tmp_path, "demo", **sections[key])
    with pytest.raises(ConfigError, match=f"`{key}`: the password itself is in the file") as refused:
        load_replication(file, secrets=False)
    assert "Hidden" not in str(refused.value)
    file.write_text(f'plain-passwords = ["{key}"]\n{file.read_text()}')
    assert load_replication(file).name == "demo"


def test_password_in_feeder_toml_must_be_allowed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "feeder.toml"
    text = '[tracker]\npassword = "Hidden"\n[[source]]\nname = "s"\nuser = "airflow:s"\npassword = "airflow:s"\n'
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"`tracker\.password`: the password itself") as refused:
        read_settings(file)
    assert "Hidden" not in str(refused.value)
    file.write_text(f'plain-passwords = ["tracker.password"]\n{text}')
    monkeypatch.setenv("AIRFLOW_CONN_S", "mysql://u:p@h")
    (source,) = read_settings(file).source
    assert (source.user, source.password) == ("u", "p")


def test_secrets_of_feeds_are_read_where_they_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "kafka+ssl://h:1/t?protocol=avro&sasl-mechanism=plain&sasl-user=airflow:k&sasl-password=airflow%3Ak"
    feed = FeedSection(name="f", sink_uri=uri, schema_registry="http://ann:env:BINLAKE_TEST_REGISTRY@h:1")
    before = feed.compute_data_hash()
    assert feed.sink.kafka is not None
    with pytest.raises(ConfigError, match="sasl-user names the Airflow connection k"):
        build_client_settings(feed.sink.kafka)
    with pytest.raises(ConfigError, match="schema-registry names an environment variable"):
        SchemaRegistry(feed.schema_registry)
    monkeypatch.setenv("AIRFLOW_CONN_K", "kafka://ann:hidden@h")
    monkeypatch.setenv("BINLAKE_TEST_REGISTRY", "hidden")
    settings = build_client_settings(feed.sink.kafka)
    assert (settings["sasl.username"], settings["sasl.password"]) == ("ann", "hidden")
    with SchemaRegistry(feed.schema_registry) as registry:
        assert registry.shown == "http://h:1"
    # Another password does not encode messages again.
    assert feed.compute_data_hash() == before
    assert find_connections([uri, feed.schema_registry]) == ["k"]


def test_passwords_of_feeds_in_the_file_are_said() -> None:
    kafka = "kafka://h:1/t?protocol=canal-json&sasl-mechanism=plain&sasl-user=a&sasl-password="
    s3 = "s3://b/p?protocol=canal-json&access-key=a&secret-access-key="
    for uri, key in ((kafka, "sasl-password"), (s3, "secret-access-key")):
        assert list_plain_secrets(FeedSection(name="f", sink_uri=f"{uri}Hidden")) == [key]
        assert list_plain_secrets(FeedSection(name="f", sink_uri=f"{uri}env:NAME")) == []
    registered = FeedSection(name="f", sink_uri=f"{kafka}env:N", schema_registry="http://a:Hidden@h:1")
    assert list_plain_secrets(registered) == ["schema-registry"]
